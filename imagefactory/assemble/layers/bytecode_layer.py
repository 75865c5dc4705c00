"""Lists the files of layers of bytecode: what Python would otherwise compile at each first start of a container.

The Python of the image's base compiles them, so that the result fits. It runs here for images of other platforms, too:
bytecode does not depend on the processor.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO
from zipfile import ZipFile

from packaging.utils import parse_wheel_filename

from imagefactory.assemble.layers.debian.deb import DebPackage, NamedDeb, open_deb, unpack
from imagefactory.assemble.layers.debian.file_tree import FACTORY
from imagefactory.errors import BuildError
from imagefactory.oci.entry import Entry, EntryKind, ImagePath, RawSlice, read_content
from imagefactory.plan.bytecode import (
    COMPILER,
    STANDARD_LIBRARY,
    ListedModules,
    is_list,
    listed_name,
    python_packages,
)
from imagefactory.plan.plan import BytecodeLayer, Input
from imagefactory.project.locks.files import LockedDeb
from imagefactory.store.digests import Sha256

Files = Mapping[Sha256, Path]
_MOST_PROCESSES = 8  # of one layer; others are built at the same time
_IN_DATA = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/")
"""The folders of a wheel that are installed into site-packages, like what lies beside them."""


def bytecode_entries(
    layer: BytecodeLayer,
    files: Files,
    scratch: Path,
    modded: Sequence[Entry],
    python: Sequence[tuple[LockedDeb, Path]],
) -> Iterator[tuple[str, Entry]]:
    """Compile the modules of a layer and list the results, each with the owner of its source.

    The entries refer to files in `scratch`, which must stay until the layer is written.
    """
    packed = scratch / "sources"
    owners: dict[str, str] = {}
    places: dict[str, tuple[int, int]] = {}
    with packed.open("wb") as sources:
        for owner, path, text in _modules(layer, files, scratch, modded):
            owners[path] = owner
            places[path] = sources.tell(), len(text)
            sources.write(text)
    program = next(files[file.sha256] for file in layer.inputs if file.name == COMPILER)
    interpreter = DebianPython(layer.settings.python, python, scratch / "python")
    lines = [f"{offset} {size} {path}\n" for path, (offset, size) in sorted(places.items())]
    for source, compiled, content in _compile(interpreter, program, packed, lines, scratch):
        yield owners[source], Entry(ImagePath(compiled), EntryKind.FILE, 0o644, content)


def _compile(
    python: DebianPython, program: Path, sources: Path, lines: Sequence[str], scratch: Path
) -> Iterator[tuple[str, str, RawSlice]]:
    """Compile parts of a file on all cores; yield the paths of each source and of its bytecode, and the bytecode."""
    count = max(1, min(os.cpu_count() or 1, _MOST_PROCESSES, len(lines)))
    with ExitStack() as stack:
        outputs: list[tuple[Path, Path]] = []
        processes: list[subprocess.Popen[str]] = []
        for number in range(count):
            names = scratch / f"names-{number}"
            # Dealt out one by one, so that no process gets a whole large package.
            names.write_text("".join(lines[number::count]), "utf-8")
            printed, results = scratch / f"printed-{number}", scratch / f"results-{number}"
            outputs.append((printed, results))
            output = stack.enter_context(printed.open("w"))
            processes.append(stack.enter_context(python.start(program, sources, names, results, output=output)))
            stack.callback(processes[-1].kill)
        for process in processes:
            _, complaint = process.communicate()
            if process.returncode != 0:
                last = (complaint.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
                raise cannot_run(program, last)
    for printed, results in outputs:
        for line in printed.read_text("utf-8").splitlines():
            offset, size, source, compiled = line.split(" ")
            yield source, compiled, RawSlice(results, int(offset), int(size))


def _modules(
    layer: BytecodeLayer, files: Files, scratch: Path, modded: Sequence[Entry]
) -> Iterator[tuple[str, str, bytes]]:
    """List what a layer compiles, of the server's modules or of our own: owner, path in the image, source."""
    lists = (files[file.sha256].read_text("utf-8") for file in layer.inputs if is_list(file.name))
    listed = ListedModules("".join(lists))
    for file in layer.inputs:
        if file.name in layer.settings.files:
            yield FACTORY, layer.settings.files[file.name], files[file.sha256].read_bytes()
        elif file.name.endswith(".deb"):
            yield from _standard_library(layer, file, files, scratch, listed)
        elif file.name.endswith(".whl"):
            yield from _installed(layer, file, files, listed)
    for entry in modded:
        yield "mods", entry.path, read_content(entry.content)


def _standard_library(
    layer: BytecodeLayer, package: Input, files: Files, scratch: Path, listed: ListedModules
) -> Iterator[tuple[str, str, bytes]]:
    deb = open_deb(NamedDeb.of_file(package.name, package.sha256), files[package.sha256], scratch)
    library = f"usr/lib/python{layer.settings.python}/"
    for entry in unpack(deb, deb.locked.architecture).entries:
        path = entry.path.removeprefix(library)
        if entry.content is not None and path != entry.path and listed.has(STANDARD_LIBRARY, path):
            yield deb.name, entry.path, read_content(entry.content)


def _installed(
    layer: BytecodeLayer, wheel: Input, files: Files, listed: ListedModules
) -> Iterator[tuple[str, str, bytes]]:
    settings = layer.settings
    name = listed_name(str(parse_wheel_filename(wheel.name)[0]))
    without = settings.without.get(wheel.name, ())
    with ZipFile(files[wheel.sha256]) as archive:
        for member in archive.namelist():
            path = _IN_DATA.sub("", member)
            if listed.has(name, path) and path not in without:
                yield wheel.name, f"{settings.site}/{path}", archive.read(member)


_LIBRARIES = ("libc6", "libexpat1", "zlib1g")  # what Debian's Python is linked with, besides itself


def needed_packages(python: str, debs: Sequence[LockedDeb]) -> list[LockedDeb]:
    return [*python_packages(python, debs)[:2], *(deb for deb in debs if deb.name in _LIBRARIES)]


class DebianPython:
    """An unpacked Python, started through the loader that was unpacked with it."""

    def __init__(self, python: str, debs: Iterable[tuple[DebPackage, Path]], folder: Path) -> None:
        folder.mkdir()
        self._home = folder / "usr"
        self._program = self._home / "bin" / f"python{python}"
        for package, file in debs:
            _unpack(package, file, folder)
        self._loader = _only(folder, "ld-linux-*.so.*")
        self._libraries = _only(folder, "libc.so.6").parent

    def start(self, *words: str | Path, output: IO[str]) -> subprocess.Popen[str]:
        """Start a program in this Python; only its words determine what it does, not the user's environment."""
        # Sets among a module's constants are ordered by the seed of hashes, which -I would ignore, too.
        environment = {"PYTHONHOME": str(self._home), "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
        command = [
            *(self._loader, "--library-path", self._libraries, "--argv0", self._program, self._program),
            *("-P", "-s", "-S", "-B", "-W", "ignore", *words),
        ]
        try:
            return subprocess.Popen(  # noqa: S603 - from locked packages
                command, env=environment, text=True, stdout=output, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise cannot_run(self._program, f"{self._loader.name}: {error.strerror}") from None


def cannot_run(program: Path | str, why: str) -> BuildError:
    return BuildError(
        "bytecode-failed",
        "Debian's Python did not compile the bytecode of an image.",
        where=program,
        why=why,
        fix="It runs on Linux, from the cache: FACTORY_CACHE may not be mounted `noexec`. Else build on another "
        "machine, or with `--engine docker`.",
    )


def _only(folder: Path, name: str) -> Path:
    matches = [path for path in sorted(folder.rglob(name)) if path.is_file() and not path.is_symlink()]
    if not matches:
        raise cannot_run(folder, f"The packages of the base have no {name}.")
    return matches[0]


def _unpack(package: DebPackage, file: Path, folder: Path) -> None:
    for entry in unpack(open_deb(package, file, folder), package.architecture).entries:
        path = folder / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        # An absolute link would lead out of the folder.
        if entry.kind is EntryKind.SYMLINK and not entry.target.startswith("/"):
            path.symlink_to(entry.target)
        elif entry.content is not None:
            path.write_bytes(read_content(entry.content))
            path.chmod(entry.mode & 0o755)
