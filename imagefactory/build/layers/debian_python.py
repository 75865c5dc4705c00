"""Runs the Python of a Debian base on this machine, from an unpacked folder: no root, no container, no installation."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from imagefactory.build.layers.debian.deb import DebPackage, open_deb
from imagefactory.build.layers.debian.unpack import unpack
from imagefactory.errors.layers import BytecodeError
from imagefactory.locks.files import LockedDeb
from imagefactory.oci.entry import EntryKind, read_content
from imagefactory.plan.bytecode import python_packages

_LIBRARIES = ("libc6", "libexpat1", "zlib1g")
"""What Debian's Python is linked with; the rest of it is in the program itself."""


def needed_packages(python: str, debs: Sequence[LockedDeb]) -> list[LockedDeb]:
    """Return the packages of a base that running its Python takes."""
    return [*python_packages(python, debs)[:2], *(deb for deb in debs if deb.name in _LIBRARIES)]


class DebianPython:
    """An unpacked Python, started through the loader that was unpacked with it."""

    def __init__(self, python: str, debs: Iterable[tuple[DebPackage, Path]], folder: Path) -> None:
        """Unpack the packages into an empty folder."""
        self._home = folder / "usr"
        self._program = self._home / "bin" / f"python{python}"
        for package, file in debs:
            _unpack(package, file, folder)
        self._loader = _only(folder, "ld-linux-*.so.*")
        self._libraries = _only(folder, "libc.so.6").parent

    def start(self, *words: str | Path, output: IO[str]) -> subprocess.Popen[str]:
        """Start a program in this Python; only its words determine what it does, not the user's environment."""
        # -I would ignore the seed, too.
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


def cannot_run(program: Path | str, why: str) -> BytecodeError:
    """Return the error for a Python that does not do its work on this machine."""
    return BytecodeError(
        "Debian's Python did not compile the bytecode of an image.",
        where=program,
        why=why,
        fix="It runs on Linux, from the cache: FACTORY_CACHE may not be mounted `noexec`. Else build on another "
        "machine, or with `--engine docker`.",
    )


def _only(folder: Path, name: str) -> Path:
    found = [path for path in sorted(folder.rglob(name)) if path.is_file() and not path.is_symlink()]
    if not found:
        raise cannot_run(folder, f"The packages of the base have no {name}.")
    return found[0]


def _unpack(package: DebPackage, file: Path, folder: Path) -> None:
    for entry in unpack(open_deb(package, file, folder), package.architecture).entries:
        path = folder / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.kind is EntryKind.SYMLINK and not entry.target.startswith("/"):
            path.symlink_to(entry.target)
        elif entry.content is not None:
            path.write_bytes(read_content(entry.content))
            path.chmod(entry.mode & 0o755)
