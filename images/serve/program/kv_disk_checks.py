"""Checks whether the KV cache can be kept on a disk."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from .command import ALLOCATOR_VARIABLES, nodes, option
from .findings import FAIL, OK, WARN, Finding, Start
from .kv_disk import FLAG, stage
from .memory import GB


def kv_disk(start: Start) -> Iterator[Finding]:
    folder = start.settings.text("KV_DISK")
    if not folder:
        yield Finding("kv-disk", OK, "off")
        return
    refusals = list(_refusals(start))
    for detail, allowed, remedy in refusals:
        yield Finding("kv-disk", FAIL, detail, "KV_DISK", folder, allowed, remedy)
    if refusals:
        return
    disk = os.statvfs(_existing(folder))
    size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    limit, needed = (start.settings.number("KV_DISK_GB") or 0) * GB, stage(start.settings)
    available = start.readings.memory_available
    if not start.readings.unified and available is not None and needed > available:
        detail = f"the stage of {needed / GB:.0f} GB does not fit into {available / GB:.1f} GB of available memory"
        remedy = "Lower KV_DISK_STAGE_GB."
        yield Finding("kv-disk", FAIL, detail, "KV_DISK_STAGE_GB", str(needed // GB), remedy=remedy)
    if limit > size:
        remedy = f"Set KV_DISK_GB to {max(1, size // GB)} or less."
        detail = f"the disk of {folder} has {size / GB:.0f} GB in all"
        yield Finding("kv-disk", WARN, detail, "KV_DISK_GB", str(limit // GB), remedy=remedy)
    if _existing(folder).stat().st_dev == Path("/").stat().st_dev:
        remedy = f"Mount a volume there: -v imagefactory-kv:{folder}"
        yield Finding("kv-disk", WARN, f"{folder} is inside the container, and is lost with it", remedy=remedy)
    detail = f"up to {limit / GB:.0f} GB in {folder}, {free / GB:.0f} GB free; {needed / GB:.0f} GB of memory"
    yield Finding("kv-disk", OK, detail)


def _refusals(start: Start) -> Iterator[tuple[str, str, str]]:
    """Yield why the KV cache cannot be on the disk, what is allowed, and what to do."""
    folder, words = start.settings.text("KV_DISK"), start.settings.extra
    if not start.on_gpu:
        yield "vLLM moves KV caches from GPUs only", "no KV_DISK", "Leave KV_DISK out."
    if nodes(start.settings) > 1 or option(words, "--nnodes", "-n") not in {None, "1"}:
        detail = "the other machine's part of a KV cache never reaches this machine's disk"
        yield detail, "one machine", "Leave KV_DISK out."
    for flag, why in (
        (FLAG, "it names another place for the KV cache"),
        ("--kv-offloading-size", "it names another place for the KV cache"),
        ("--enable-lora", "vLLM tells the caches of adapters apart by the adapter's name alone"),
        ("--data-parallel-size", "several engines would write to the same files"),
        ("-dp", "several engines would write to the same files"),
    ):
        if any(word.partition("=")[0].replace("_", "-") == flag for word in words):
            yield f"{flag} and KV_DISK exclude each other: {why}", f"no {flag}", f"Leave out KV_DISK or {flag}."
    if "xxhash" in (option(words, "--prefix-caching-hash-algo") or ""):
        detail = "xxhash lets others find texts with the same name: answers would come from the wrong text"
        yield detail, "sha256", "Leave --prefix-caching-hash-algo out."
    for name in (
        name for name in ALLOCATOR_VARIABLES if "expandable_segments:true" in os.environ.get(name, "").lower()
    ):
        detail = f"vLLM does not copy a KV cache whose memory may move ({name}=expandable_segments:True)"
        yield detail, "expandable_segments:False", f"Leave expandable_segments out of {name}, or leave KV_DISK out."
    if not folder.startswith("/"):
        yield f"{folder!r} is not a path from /", "a folder in the container", "Set KV_DISK=/kv."
    elif not os.access(_existing(folder), os.W_OK):
        yield f"{folder} cannot be written", "a folder for files", f"Mount one: -v imagefactory-kv:{folder}"
    elif _in_use(folder):
        yield f"another server uses {folder}", "a folder of its own", "Stop the other server, or name another folder."


def _existing(folder: str) -> Path:
    """Return a folder, or the first above it that is there: a check makes none."""
    return next(place for place in (Path(folder), *Path(folder).parents) if place.is_dir())


def _in_use(folder: str) -> bool:
    try:
        lock = os.open(f"{folder}/lock", os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
