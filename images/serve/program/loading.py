"""Decides whether the image's loader can load these weights; otherwise the server loads them in its own way."""

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from . import checkpoint
from .command import option
from .findings import Start

BLOCK = 4096
"""What reads without the page cache are aligned to."""
HELD_FILES = 2
"""Files that fastsafetensors holds in memory at once: one is read while the other is copied."""


def fitting(start: Start) -> Start:
    """Return the start, without the image's loader if that cannot load the weights; a remark says why."""
    loader = start.settings.text("LOAD_FORMAT")
    if loader not in OBSTACLES or "LOAD_FORMAT" in start.settings.given:
        return start
    why = next((why for find in (_of_any, OBSTACLES[loader]) for why in find(start)), "")
    if not why:
        return start
    settings = start.settings._replace(values={**start.settings.values, "LOAD_FORMAT": None})
    command = start.server.build(start.image, settings)
    remark = f"weights load without {loader}, more slowly: {why}"
    return start._replace(settings=settings, command=command._replace(remarks=(*command.remarks, remark)))


def _weights(start: Start) -> list[Path]:
    """List the files with weights of the model and of its drafter, as far as they are on disk."""
    drafter = start.command.speculative or {}
    places = [start.folder]
    if drafter.get("model"):
        places.append(checkpoint.locate(str(drafter["model"]), str(drafter.get("revision", "")), start.cache))
    found: list[Path] = []
    for place in filter(None, places):
        with suppress(OSError):
            files = sorted(Path(place).iterdir()) if checkpoint.is_folder(place) else [Path(place)]
            found += [file for file in files if file.name.endswith(checkpoint.WEIGHTS)]
    return found


def _of_any(start: Start) -> Iterator[str]:
    if start.folder is None and not start.own_model:
        yield f"the files of {start.command.model} are not known before the download"
    stages = option(start.settings.extra, *start.server.parallel[1]) or "1"
    if start.command.speculative and stages != "1":
        yield "all stages of a pipeline would have to load the drafter, which only one has"
    names: dict[Path, list[str]] = {}
    for file in _weights(start):
        names.setdefault(file.parent, []).append(file.name)
    for folder, present in names.items():
        if not any(name.endswith(".safetensors") for name in present):
            yield f"{folder} has no safetensors files, but {present[0]}"
        elif any(name.startswith("consolidated") for name in present):
            yield f"{folder} has files in Mistral's own format"


def _of_instanttensor(start: Start) -> Iterator[str]:
    if start.package is None:
        return  # not in an image: this machine's disks do not matter
    file = next(iter(_weights(start)), None)
    if not (_reads_directly(str(file)) if file else _reads_directly_below(start.cache)):
        yield f"the file system of {file or start.cache} has no direct I/O"


def _of_fastsafetensors(start: Start) -> Iterator[str]:
    largest, left = 0, start.readings.memory_available
    for file in _weights(start):
        with suppress(OSError):
            largest = max(largest, file.stat().st_size)
    held = HELD_FILES * largest
    if held and left is not None and start.readings.unified and held + (start.needs().weights or 0) > left:
        room = f"{left / 1e9:.0f} GB are available"
        yield f"it would hold {held / 1e9:.0f} GB of files in memory beside the weights, and {room}"


OBSTACLES = {"instanttensor": _of_instanttensor, "fastsafetensors": _of_fastsafetensors}


def _reads_directly(file: str) -> bool:
    """Whether a file can be read without the page cache; what cannot be told counts as yes."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, BLOCK) as block:
                os.preadv(handle, [block], 0)
        finally:
            os.close(handle)
    except OSError as error:
        return error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}
    return True


def _reads_directly_below(folder: str) -> bool:
    """Whether files that will be in a folder can be read so, as one tells that is there for a moment."""
    try:
        place = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
        with tempfile.NamedTemporaryFile(dir=place) as file:
            file.write(bytes(BLOCK))
            file.flush()
            return _reads_directly(file.name)
    except OSError:
        return True
