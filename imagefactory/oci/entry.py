"""The entries of a layer: paths with metadata, and their content, which knows how to read and check itself."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NewType, Protocol

from isal import igzip_lib, isal_zlib

from imagefactory.errors import InputError
from imagefactory.store.digests import Sha256, sha256_of

ImagePath = NewType("ImagePath", str)
"""A path in the image: relative to `/`, forward slashes, no `.` or `..`, no trailing slash."""
INFLATE_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub takes it for an instance
_INPUT = 256 * 1024  # compressed bytes that are read at a time
_OUTPUT = 1024 * 1024  # the most bytes of one block: data may inflate a thousandfold


class Content(Protocol):
    """What a file of a layer holds."""

    @property
    def size(self) -> int:
        """The number of bytes."""

    @property
    def sha256(self) -> Sha256 | None:
        """The hash of the bytes, computed or as promised; Debian packages promise none for a single file."""

    def blocks(self, name: str, *, check: bool = True) -> Iterator[bytes]:
        """Yield the bytes in pieces; raise an error at the end if they are too few, or (`check`) not as promised."""


def read_content(content: Content | None, name: str = "a file") -> bytes:
    """Read a whole content into memory; what has none (a folder, a link) is empty."""
    return b"".join(content.blocks(name)) if content is not None else b""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Content in memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def sha256(self) -> Sha256:
        return sha256_of(self.data)

    def blocks(self, name: str, *, check: bool = True) -> Iterator[bytes]:  # noqa: ARG002 - nothing can be wrong
        yield self.data


@dataclass(frozen=True, slots=True)
class RawSlice:
    """Uncompressed content in a local file."""

    file: Path
    offset: int
    size: int
    sha256: Sha256 | None = None  # the hash in a wheel's RECORD; Debian packages are hashed as a whole

    def blocks(self, name: str, *, check: bool = True) -> Iterator[bytes]:
        promised = hashlib.sha256() if check and self.sha256 is not None else None
        size = 0
        for data in _slices(self.file, self.offset, self.size, _OUTPUT):
            size += len(data)
            if promised is not None:
                promised.update(data)
            yield data
        if size != self.size:
            raise _damaged(self.file, f"{name} cannot be read.", "The file ends too early.")
        if promised is not None and promised.hexdigest() != self.sha256:
            raise _damaged(self.file, f"{name} is not what its wheel's RECORD says.", "Its sha256 is another one.")


@dataclass(frozen=True, slots=True)
class DeflatedSlice:
    """A raw deflate stream in a local file, as in a zip."""

    file: Path
    offset: int
    deflated: int
    crc32: int
    size: int
    sha256: Sha256  # in the wheel's RECORD

    def stored(self, most: int = _OUTPUT) -> Iterator[bytes]:
        return _slices(self.file, self.offset, self.deflated, most)

    def blocks(
        self, name: str, *, check: bool = True, tap: Callable[[bytes], None] = lambda _: None
    ) -> Iterator[bytes]:
        """Yield the inflated bytes, checked against the zip directory, and (`check`) against RECORD.

        `tap` gets the bytes as they are stored.
        """
        # Not isal_zlib.decompressobj, which swallows up to seven bytes after the end of a stream.
        inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)
        stored, promised = self.stored(_INPUT), hashlib.sha256()
        crc, size = 0, 0
        # Beyond the promised size nothing more is inflated: the stream is wrong, or a zip bomb.
        while size <= self.size and not inflater.eof:
            data = b""
            if inflater.needs_input:
                data = next(stored, b"")
                if not data:
                    break  # the input is exhausted, but the stream has not ended
                tap(data)
            try:
                out = bytes(inflater.decompress(data, _OUTPUT))
            except INFLATE_ERROR as error:
                raise _damaged(self.file, f"{name} cannot be read.", f"{error}.") from None
            size += len(out)
            crc = isal_zlib.crc32(out, crc)
            if check:
                promised.update(out)
            yield out
        # The stream has to end exactly where the zip directory says.
        whole = inflater.eof and not inflater.unused_data and not next(stored, b"")
        if not whole or size != self.size or crc != self.crc32:
            raise _damaged(
                self.file, f"{name} cannot be read.", "Its compressed data does not match the zip directory."
            )
        if check and promised.hexdigest() != self.sha256:
            raise _damaged(self.file, f"{name} is not what its wheel's RECORD says.", "Its sha256 is another one.")


def _slices(file: Path, offset: int, size: int, most: int) -> Iterator[bytes]:
    descriptor, end = os.open(file, os.O_RDONLY), offset + size
    try:
        while offset < end and (data := os.pread(descriptor, min(most, end - offset), offset)):
            yield data
            offset += len(data)
    finally:
        os.close(descriptor)


class EntryKind(Enum):
    """The types of entry that a layer may contain."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a layer. The layer format determines time, owner names and order."""

    path: ImagePath
    kind: EntryKind
    mode: int
    content: Content | None = None
    target: str = ""  # the target of a symlink (verbatim), or the image path of a hard link's original
    uid: int = 0
    gid: int = 0


def _damaged(file: Path, what: str, why: str) -> InputError:
    fix = "The package was published like that, or was tampered with; choose another version in matrix.yaml."
    return InputError("damaged-file", what, where=file, why=why, fix=fix)
