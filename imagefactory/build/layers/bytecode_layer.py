"""Lists the files of layers of bytecode: what Python would otherwise compile at each first start of a container.

The Python of the image's base compiles them, so that the result fits. It runs here for images of other platforms, too:
bytecode does not depend on the processor.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from packaging.utils import parse_wheel_filename

from imagefactory.build.layers.debian.deb import NamedDeb, open_deb
from imagefactory.build.layers.debian.file_tree import FACTORY
from imagefactory.build.layers.debian.unpack import unpack
from imagefactory.build.layers.debian_python import DebianPython, cannot_run
from imagefactory.build.layers.mod_layer import ModFiles, read_content
from imagefactory.build.layers.wheel_layer import Environment, wheel_entries
from imagefactory.locks.files import LockedDeb
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath, RawSlice
from imagefactory.plan.bytecode import COMPILER, STANDARD_LIBRARY, ListedModules, is_list, listed_name
from imagefactory.plan.plan import BytecodeLayer, Input
from imagefactory.store.digests import Sha256

Files = Mapping[Sha256, Path]
_MOST_PROCESSES = 8


def bytecode_entries(
    layer: BytecodeLayer,
    files: Files,
    scratch: Path,
    mod_files: ModFiles | None,
    python: Sequence[tuple[LockedDeb, Path]],
) -> Iterator[tuple[str, Entry]]:
    """Compile the modules of a layer and list the results, each with the owner of its source.

    The entries refer to files in `scratch`, which must stay until the layer is written.
    """
    owners: dict[str, str] = {}
    sources = scratch / "sources"
    for owner, entry in _modules(layer, files, scratch, mod_files):
        path = sources / entry.path
        if entry.content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(read_content(entry.content))
            owners[entry.path] = owner
    program = next(files[item.sha256] for item in layer.inputs if item.name == COMPILER)
    interpreter = DebianPython(layer.settings.python, python, _new(scratch / "python"))
    for source, compiled in _compile(interpreter, program, sources, sorted(owners), scratch):
        path = sources / compiled
        content = RawSlice(path, 0, path.stat().st_size)
        yield owners[source], Entry(ImagePath(compiled), EntryKind.FILE, 0o644, content)


def _compile(
    python: DebianPython, program: Path, sources: Path, paths: Sequence[str], scratch: Path
) -> Iterator[tuple[str, str]]:
    """Compile files on all cores; yield the paths of each source and of its bytecode."""
    count = max(1, min(os.cpu_count() or 1, _MOST_PROCESSES, len(paths)))
    with ExitStack() as stack:
        outputs: list[Path] = []
        processes: list[subprocess.Popen[str]] = []
        for number in range(count):
            names = scratch / f"names-{number}"
            names.write_text("".join(f"{path}\n" for path in paths[number::count]), "utf-8")
            outputs.append(scratch / f"compiled-{number}")
            output = stack.enter_context(outputs[-1].open("w"))
            processes.append(stack.enter_context(python.start(program, sources, names, output=output)))
            stack.callback(processes[-1].kill)
        for process in processes:
            _, complaint = process.communicate()
            if process.returncode != 0:
                last = (complaint.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
                raise cannot_run(program, last)
    for line in (line for output in outputs for line in output.read_text("utf-8").splitlines()):
        source, _, compiled = line.partition(" ")
        yield source, compiled


def _modules(
    layer: BytecodeLayer, files: Files, scratch: Path, mod_files: ModFiles | None
) -> Iterable[tuple[str, Entry]]:
    """List what a layer compiles, with owners."""
    lists = [files[item.sha256].read_text("utf-8") for item in layer.inputs if is_list(item.name)]
    if lists:
        listed = ListedModules("".join(lists))
        for item in layer.inputs:
            if item.name.endswith(".deb"):
                yield from _standard_library(layer, item, files, scratch, listed)
            elif item.name.endswith(".whl"):
                yield from _installed(layer, item, files, listed)
        return
    for item in layer.inputs:
        place = layer.settings.files.get(item.name)
        if place is not None:
            yield (
                FACTORY,
                Entry(ImagePath(place), EntryKind.FILE, 0o644, Bytes(files[item.sha256].read_bytes())),
            )
    if layer.settings.mods is not None:
        if mod_files is None:
            raise ValueError("the mods have not been applied")
        yield from (("mods", entry) for entry in mod_files.confirmed_by(files))


def _standard_library(
    layer: BytecodeLayer, item: Input, files: Files, scratch: Path, listed: ListedModules
) -> Iterable[tuple[str, Entry]]:
    deb = open_deb(NamedDeb.of_file(item.name, item.sha256), files[item.sha256], scratch)
    library = f"usr/lib/python{layer.settings.python}/"
    for entry in unpack(deb, deb.locked.architecture).entries:
        if entry.path.startswith(library) and listed.has(STANDARD_LIBRARY, entry.path.removeprefix(library)):
            yield deb.name, entry


def _installed(
    layer: BytecodeLayer, item: Input, files: Files, listed: ListedModules
) -> Iterable[tuple[str, Entry]]:
    settings = layer.settings
    site = f"{settings.venv}/lib/python{settings.python}/site-packages/"
    name = listed_name(str(parse_wheel_filename(item.name)[0]))
    without = settings.without.get(item.name, ())
    environment = Environment(settings.venv, settings.python)
    for entry in wheel_entries(files[item.sha256], item.name, environment, without=without):
        if entry.path.startswith(site) and listed.has(name, entry.path.removeprefix(site)):
            yield item.name, entry


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder
