"""Read a .deb: an ar archive of a control tar and a data tar, each compressed.

The data tar is decompressed once, to a spool file; later readers take slices of it. Memory stays small.
"""

from __future__ import annotations

import gzip
import io
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Protocol, cast

import zstandard

from imagefactory.errors.layers import DebFormatError
from imagefactory.store.atomic import translating_disk_full

_MAGIC = b"!<arch>\n"
_HEADER = 60
_END_OF_HEADER = b"`\n"


def _xz(file: BinaryIO) -> IO[bytes]:
    return lzma.open(file)


def _gz(file: BinaryIO) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(file))


def _zstd(file: BinaryIO) -> IO[bytes]:
    return zstandard.ZstdDecompressor().stream_reader(file)


_OPENERS: Mapping[str, Callable[[BinaryIO], IO[bytes]]] = {
    ".tar.xz": _xz,
    ".tar.zst": _zstd,
    ".tar.gz": _gz,
    ".tar": lambda file: file,
}


class DebPackage(Protocol):
    """What the base has to know of a package before it opens it; a lock entry says all of it."""

    @property
    def name(self) -> str:
        """The package's name."""

    @property
    def version(self) -> str:
        """Its version."""

    @property
    def architecture(self) -> str:
        """Its architecture, or `all`."""

    @property
    def file(self) -> str:
        """The name of its file, for messages."""

    @property
    def sha256(self) -> str:
        """The hash of its file."""


@dataclass(frozen=True)
class Deb:
    """A package ready to be unpacked: its control files in memory, its data tar in a spool file."""

    locked: DebPackage
    control: Mapping[str, bytes]
    data: Path

    @property
    def name(self) -> str:
        """Give the package's name."""
        return self.locked.name

    def script(self, name: str) -> str:
        """Give the text of a maintainer script, empty when the package has none."""
        return self.control.get(name, b"").decode("utf-8", errors="replace")

    def field(self, name: str) -> str:
        """Give a one-line field of the control file, empty when it is not there."""
        for line in self.script("control").splitlines():
            key, colon, value = line.partition(":")
            if colon and key.lower() == name.lower():
                return value.strip()
        return ""


def open_deb(locked: DebPackage, file: Path, scratch: Path) -> Deb:
    """Read a package's control files, and decompress its data tar into the scratch folder."""
    spool = scratch / f"{locked.sha256}.tar"
    with reading(locked), file.open("rb") as archive:
        members = dict(_members(archive))
        with _opened(archive, members, "control") as control:
            files = _control_files(control)
        with translating_disk_full(spool), _opened(archive, members, "data") as data, spool.open("wb") as out:
            shutil.copyfileobj(data, out, 1 << 20)
    return Deb(locked=locked, control=files, data=spool)


@contextmanager
def data_files(file: Path) -> Iterator[Iterator[tuple[str, str, Callable[[], bytes] | None]]]:
    """Go through what a package would unpack: path, where a link points, and how to read a plain file."""
    with file.open("rb") as archive:
        members = dict(_members(archive))
        with _opened(archive, members, "data") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            yield ((_path(member), member.linkname, _reader(tar, member)) for member in tar)


def _path(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./").rstrip("/")


def _reader(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[], bytes] | None:
    if not member.isreg():
        return None

    def read() -> bytes:
        content = tar.extractfile(member)
        return b"" if content is None else content.read()

    return read


@contextmanager
def reading(locked: DebPackage) -> Iterator[None]:
    """Turn what decompressors and tarfile raise on damaged input into an error that names the package."""
    try:
        yield
    except (
        tarfile.TarError,
        lzma.LZMAError,
        zlib.error,
        gzip.BadGzipFile,
        zstandard.ZstdError,
        EOFError,
        UnicodeDecodeError,
        _NotADebError,
    ) as error:
        raise DebFormatError(
            f"The package {locked.name} {locked.version} cannot be unpacked.",
            where=locked.file,
            why=str(error) or type(error).__name__,
            fix="Run `invoke clean` and build again; if the same file fails again, make a new lock.",
        ) from error


class _NotADebError(Exception):
    """The outer archive is not what a .deb must be."""


def _members(archive: BinaryIO) -> Iterator[tuple[str, tuple[int, int]]]:
    """List the members of an ar archive: name, offset and size."""
    if archive.read(len(_MAGIC)) != _MAGIC:
        raise _NotADebError("it is not an ar archive")
    while header := archive.read(_HEADER):
        if len(header) != _HEADER or not header.endswith(_END_OF_HEADER):
            raise _NotADebError("its ar archive is damaged")
        name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
        yield name, (archive.tell(), size)
        archive.seek(size + size % 2, io.SEEK_CUR)


@contextmanager
def _opened(archive: BinaryIO, members: Mapping[str, tuple[int, int]], stem: str) -> Iterator[IO[bytes]]:
    for suffix, opener in _OPENERS.items():
        if f"{stem}{suffix}" in members:
            offset, size = members[f"{stem}{suffix}"]
            with opener(io.BufferedReader(_Section(archive, offset, size), 1 << 18)) as stream:
                yield stream
            return
    raise _NotADebError(f"it has no {stem}.tar that we can read, only {', '.join(members)}")


def _control_files(stream: IO[bytes]) -> dict[str, bytes]:
    with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8") as tar:
        return {
            member.name.removeprefix("./"): content.read()
            for member in tar
            if member.isreg() and (content := tar.extractfile(member)) is not None
        }


class _Section(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        super().__init__()
        self._file, self._at, self._end = file, offset, offset + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._file.seek(self._at)
        data = self._file.read(min(len(buffer), self._end - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
