"""Layer blobs: multi-member gzip with the deflate streams of wheels copied, not recompressed.

RFC 1952 allows a gzip file to consist of several members, each of which is a header, a raw deflate stream, a CRC-32 and
a size. A zip member already has the last three. Copied streams are still inflated once: for the digest of the
uncompressed layer, and to check them against the wheel's RECORD.

If the blob's digest is known in advance, nothing is inflated: the digest proves that the bytes are those of an earlier
build that checked everything.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import deflate
from isal import igzip_lib, isal_zlib

from imagefactory.errors.layers import DamagedFileError, WrongSlimmingError
from imagefactory.gpu_code.fatbins import NotUnderstoodError
from imagefactory.gpu_code.slimming import slim
from imagefactory.oci.blob import Blob
from imagefactory.oci.entry import Content, DeflatedSlice, RawSlice, Slimmed
from imagefactory.oci.format import COMPRESSION_LEVEL, MEMBER_LIMIT, SPLICE_FROM
from imagefactory.store.digests import Digest

_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""No name, no time, operating system unknown: the same on every machine."""
INFLATE_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub takes it for an instance
_INPUT = 256 * 1024
_OUTPUT = 1024 * 1024
_NOT_AS_LISTED = "its compressed data does not match the zip directory"


def _member(data: bytes | memoryview) -> bytes:
    stream = deflate.deflate_compress(data, COMPRESSION_LEVEL)
    return b"".join((_HEADER, stream, struct.pack("<II", deflate.crc32(data), len(data))))


_ZEROS = bytes(MEMBER_LIMIT)
_ZEROS_MEMBER = _member(_ZEROS)
"""Slimmed libraries have thousands of them."""


class NotAsExpectedError(Exception):
    """A blob is not the expected one; only a build without expectations can find out why."""


class LayerBlob:
    """Writes one layer blob and computes its digests.

    With an expected blob, content is not checked; instead, `finish` refuses a blob with another digest.
    """

    def __init__(self, file: BinaryIO, expected: Blob | None = None) -> None:
        self._file = file
        self._expected = expected
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._raw = hashlib.sha256()
        self._compressed = hashlib.sha256()
        self._sources: dict[Path, int] = {}
        self.size = 0
        self.unpacked = 0

    def write(self, data: bytes) -> None:
        """Add bytes and compress them."""
        self.unpacked += len(data)
        self._pending.append(data)
        self._pending_size += len(data)
        if self._pending_size >= MEMBER_LIMIT:
            self._compress_pending(keep=self._pending_size % MEMBER_LIMIT)

    def add(self, content: Content, name: str) -> None:
        """Add a file's content, copied or compressed as the format prescribes."""
        if isinstance(content, RawSlice):
            self._copy(content, name)
        elif isinstance(content, Slimmed):
            self._slim(content, name)
        elif isinstance(content, DeflatedSlice):
            if content.size >= SPLICE_FROM:
                self._splice(content, name)
            else:
                stream = self._read(content.file, content.offset, content.deflated)
                self.write(_inflate_small(content, stream, name, check=self._expected is None))
        else:
            self.write(content.data)

    def finish(self) -> Blob:
        """Write pending bytes and return the digests."""
        self._compress_pending()
        self.close()
        expected = self._expected
        blob = Blob(
            diff_id=expected.diff_id if expected else Digest(f"sha256:{self._raw.hexdigest()}"),
            digest=Digest(f"sha256:{self._compressed.hexdigest()}"),
            size=self.size,
            unpacked=self.unpacked,
        )
        if expected is not None and blob != expected:
            raise NotAsExpectedError
        return blob

    def close(self) -> None:
        """Close the source files."""
        while self._sources:
            os.close(self._sources.popitem()[1])

    def _emit(self, data: bytes) -> None:
        self._compressed.update(data)
        self.size += len(data)
        left = memoryview(data)
        while left:  # an unbuffered file may accept only a part
            left = left[self._file.write(left) :]

    def _compress_pending(self, *, keep: int = 0) -> None:
        """Write pending bytes as members, except for the last `keep`."""
        data = memoryview(b"".join(self._pending))
        cut = len(data) - keep
        self._pending = [bytes(data[cut:])]
        self._pending_size = keep
        if self._expected is None:
            self._raw.update(data[:cut])
        for start in range(0, cut, MEMBER_LIMIT):
            member = data[start : min(start + MEMBER_LIMIT, cut)]
            self._emit(_ZEROS_MEMBER if member == _ZEROS else _member(member))

    def _copy(self, content: RawSlice, name: str) -> None:
        promised = hashlib.sha256() if content.sha256 is not None and self._expected is None else None
        before = self.unpacked
        for data in self._blocks(content.file, content.offset, content.size):
            self.write(data)
            if promised is not None:
                promised.update(data)
        if self.unpacked - before != content.size:
            raise _damaged(content.file, name, "the file ends too early")
        if promised is not None and promised.hexdigest() != content.sha256:
            raise _record_lies(content.file, name)

    def _slim(self, content: Slimmed, name: str) -> None:
        promised = hashlib.sha256()
        check = self._expected is None
        try:
            for data in slim(pieces_of(content.source, name, check=check), content.chip):
                self.write(data)
                if check:
                    promised.update(data)
        except NotUnderstoodError as error:
            raise wrong_slimming(name, f"It cannot be slimmed: {error}.") from None
        if check and promised.hexdigest() != content.sha256:
            raise wrong_slimming(
                name, f"The slimmed file has the sha256 {promised.hexdigest()}, not {content.sha256}."
            )

    def _splice(self, content: DeflatedSlice, name: str) -> None:
        self._compress_pending()
        self._emit(_HEADER)
        if self._expected is None:
            for out in pieces_of(content, name, tap=self._emit):
                self._raw.update(out)
        else:
            for data in self._blocks(content.file, content.offset, content.deflated):
                self._emit(data)
        self.unpacked += content.size
        self._emit(struct.pack("<II", content.crc32, content.size & 0xFFFFFFFF))

    def _blocks(self, file: Path, offset: int, size: int) -> Iterator[bytes]:
        end = offset + size
        while offset < end and (data := self._read(file, offset, min(_OUTPUT, end - offset))):
            yield data
            offset += len(data)

    def _read(self, file: Path, offset: int, size: int) -> bytes:
        if file not in self._sources:
            self._sources[file] = os.open(file, os.O_RDONLY)
        return os.pread(self._sources[file], size, offset)


def pieces_of(
    content: RawSlice | DeflatedSlice,
    name: str,
    *,
    check: bool = True,
    tap: Callable[[bytes], None] = lambda _: None,
) -> Iterator[bytes]:
    """Read a file of a wheel in pieces, and check it at the end: against RECORD only if `check` is set.

    `tap` gets the bytes as they are stored.
    """
    promised = hashlib.sha256()
    crc, size = 0, 0
    with content.file.open("rb", buffering=0) as file:
        stored = content.deflated if isinstance(content, DeflatedSlice) else content.size
        source = _Stored(file.fileno(), content.offset, stored, tap)
        pieces = _inflated(source, content, name) if isinstance(content, DeflatedSlice) else source.rest()
        for out in pieces:
            size += len(out)
            if isinstance(content, DeflatedSlice):
                crc = isal_zlib.crc32(out, crc)
            if check:
                promised.update(out)
            yield out
    if size != content.size or (isinstance(content, DeflatedSlice) and crc != content.crc32):
        raise _damaged(content.file, name, _NOT_AS_LISTED)
    if check and content.sha256 is not None and promised.hexdigest() != content.sha256:
        raise _record_lies(content.file, name)


class _Stored:
    """A part of a file, read from its beginning to its end."""

    def __init__(self, descriptor: int, offset: int, size: int, tap: Callable[[bytes], None]) -> None:
        self._descriptor, self._offset, self._tap = descriptor, offset, tap
        self.left = size

    def take(self, most: int) -> bytes:
        """Return the next bytes; none at the end."""
        data = os.pread(self._descriptor, min(most, self.left), self._offset)
        self._offset += len(data)
        self.left -= len(data)
        self._tap(data)
        return data

    def rest(self) -> Iterator[bytes]:
        """Return everything that is left, in pieces."""
        while data := self.take(_OUTPUT):
            yield data


def _inflated(source: _Stored, content: DeflatedSlice, name: str) -> Iterator[bytes]:
    # Not isal_zlib.decompressobj, which swallows up to seven bytes after the end of a stream.
    inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)
    size = 0
    while size <= content.size and not inflater.eof:
        data = b""
        if inflater.needs_input:
            data = source.take(_INPUT)
            if not data:
                break  # the input is exhausted, but the stream has not ended
        out = _inflate(inflater, data, content.file, name)
        size += len(out)
        yield out
    if not inflater.eof or inflater.unused_data or source.left:
        raise _damaged(content.file, name, _NOT_AS_LISTED)


def _inflate(inflater: igzip_lib.IgzipDecompressor, data: bytes, file: Path, name: str) -> bytes:
    try:
        return bytes(inflater.decompress(data, _OUTPUT))
    except INFLATE_ERROR as error:
        raise _damaged(file, name, str(error)) from None


def _inflate_small(content: DeflatedSlice, stream: bytes, name: str, *, check: bool) -> bytes:
    """Inflate a small file; check it against the zip directory, and against RECORD if `check` is set."""
    try:
        data = bytes(deflate.deflate_decompress(stream, content.size)) if content.size else b""
    except deflate.DeflateError as error:
        raise _damaged(content.file, name, str(error)) from None
    if len(data) != content.size or deflate.crc32(data) != content.crc32:
        raise _damaged(content.file, name, _NOT_AS_LISTED)
    if check and content.sha256 is not None and hashlib.sha256(data).hexdigest() != content.sha256:
        raise _record_lies(content.file, name)
    return data


def _damaged(file: Path, name: str, why: str) -> DamagedFileError:
    return DamagedFileError(
        f"{name} cannot be read.",
        where=file,
        why=f"{why[0].upper()}{why[1:]}.",
        fix="The package was already damaged when it was published; choose another version in matrix.yaml.",
    )


def wrong_slimming(name: str, why: str) -> WrongSlimmingError:
    """Return the error for a library that is not as the record has it."""
    return WrongSlimmingError(
        f"{name} does not come out as recorded.",
        where="locks/slim.toml",
        why=why,
        fix="Restore the file from git, or delete it and build again: builds write it.",
    )


def _record_lies(file: Path, name: str) -> DamagedFileError:
    return DamagedFileError(
        f"{name} is not what its wheel's RECORD says.",
        where=file,
        why="The sha256 in RECORD differs from that of the file.",
        fix="The wheel is broken or was tampered with; choose another version in matrix.yaml.",
    )
