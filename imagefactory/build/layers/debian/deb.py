"""Reads a .deb: an ar archive of a control tar and a data tar, each compressed.

The data tar is decompressed once, to a spool file that later readers take slices of, so that memory use stays small.
"""

from __future__ import annotations

import gzip
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import zstandard
from debian.arfile import ArError, ArFile
from debian.deb822 import Deb822

from imagefactory.errors.layers import DebFormatError
from imagefactory.locks.files import LockedDeb
from imagefactory.store.atomic import translating_disk_full

# ArMember reads like a file but does not declare that it is one.
_OPENERS: Mapping[str, Callable[[Any], AbstractContextManager[Any]]] = {
    ".tar.xz": lzma.open,
    ".tar.zst": zstandard.ZstdDecompressor().stream_reader,
    ".tar.gz": gzip.open,
    ".tar": closing,
}


class NamedDeb(NamedTuple):
    """A package as its file name describes it."""

    name: str
    version: str
    architecture: str
    """`all` if it runs on every one."""
    file: str
    sha256: str

    @classmethod
    def of_file(cls, file: str, sha256: str) -> NamedDeb:
        """Read a file name."""
        name, version, architecture = file.removesuffix(".deb").split("_")
        return cls(name, version.replace("%3a", ":"), architecture, file, sha256)


DebPackage = NamedDeb | LockedDeb
"""What the base must know about a package before opening it."""


@dataclass(frozen=True)
class Deb:
    """A package ready to be unpacked: its control files in memory, its data tar in a spool file."""

    locked: DebPackage
    control: Mapping[str, bytes]
    data: Path

    @property
    def name(self) -> str:
        """The package's name."""
        return self.locked.name

    def script(self, name: str) -> str:
        """Return the text of a control file or maintainer script, or an empty string if there is none."""
        return self.control.get(name, b"").decode("utf-8", errors="replace")

    def field(self, name: str) -> str:
        """Return a field of the control file, or an empty string if it has none of that name."""
        return str(Deb822(self.script("control")).get(name, ""))


def open_deb(locked: DebPackage, file: Path, scratch: Path) -> Deb:
    """Read a package's control files, and decompress its data tar into the scratch folder."""
    spool = scratch / f"{locked.sha256}.tar"
    with reading(locked), file.open("rb") as archive:
        with (
            _opened(archive, "control") as control,
            tarfile.open(fileobj=control, mode="r|", encoding="utf-8") as tar,
        ):
            files = {
                member.name.removeprefix("./"): content.read()
                for member in tar
                if member.isreg() and (content := tar.extractfile(member)) is not None
            }
        with translating_disk_full(spool), _opened(archive, "data") as data, spool.open("wb") as out:
            shutil.copyfileobj(data, out, 1 << 20)
    return Deb(locked=locked, control=files, data=spool)


@contextmanager
def data_files(file: Path) -> Iterator[Iterator[tuple[str, str, Callable[[], bytes] | None]]]:
    """Iterate over what a package would unpack: the path, a link's target, and a reader for regular files."""
    with (
        file.open("rb") as archive,
        _opened(archive, "data") as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        yield (
            (member.name.removeprefix("./").rstrip("/"), member.linkname, content.read if content else None)
            for member in tar
            for content in [tar.extractfile(member) if member.isreg() else None]
        )


@contextmanager
def reading(locked: DebPackage) -> Iterator[None]:
    """Translate what decompressors and tarfile raise on damaged input into an error that names the package."""
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


@contextmanager
def _opened(archive: BinaryIO, stem: str) -> Iterator[IO[bytes]]:
    """Decompress a member of the outer archive: `control` or `data`."""
    archive.seek(0)
    try:
        members = {member.name: member for member in ArFile(fileobj=archive).getmembers()}
    except ArError:
        raise _NotADebError("it is not an ar archive") from None
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None):  # the disk's failure, not the archive's
            raise
        raise _NotADebError(f"its ar archive is damaged: {error}") from None
    for suffix, opener in _OPENERS.items():
        if f"{stem}{suffix}" in members:
            with opener(members[f"{stem}{suffix}"]) as stream:
                yield stream
            return
    raise _NotADebError(f"it has no {stem}.tar that we can read, only {', '.join(members)}")
