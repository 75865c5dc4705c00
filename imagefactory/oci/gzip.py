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
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import deflate
from isal import igzip_lib, isal_zlib

from imagefactory.errors.layers import DamagedFileError
from imagefactory.oci.blob import Blob
from imagefactory.oci.entry import Content, DeflatedSlice, RawSlice
from imagefactory.oci.format import COMPRESSION_LEVEL, MEMBER_LIMIT, SPLICE_FROM
from imagefactory.store.digests import Digest

_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""No name, no time, operating system unknown: the same on every machine."""
INFLATE_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub takes it for an instance
_INPUT = 256 * 1024
_OUTPUT = 1024 * 1024
_NOT_AS_LISTED = "its compressed data does not match the zip directory"


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
            stream = deflate.deflate_compress(member, COMPRESSION_LEVEL)
            self._emit(b"".join((_HEADER, stream, struct.pack("<II", deflate.crc32(member), len(member)))))

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

    def _splice(self, content: DeflatedSlice, name: str) -> None:
        self._compress_pending()
        self._emit(_HEADER)
        if self._expected is None:
            self._copy_checked_stream(content, name)
        else:
            for data in self._blocks(content.file, content.offset, content.deflated):
                self._emit(data)
        self.unpacked += content.size
        self._emit(struct.pack("<II", content.crc32, content.size & 0xFFFFFFFF))

    def _copy_checked_stream(self, content: DeflatedSlice, name: str) -> None:
        # Not isal_zlib.decompressobj, which swallows up to seven bytes after the end of a stream.
        inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)
        promised = hashlib.sha256()
        crc, size, done = 0, 0, 0
        while size <= content.size and not inflater.eof:
            data = b""
            if inflater.needs_input:
                data = self._read(content.file, content.offset + done, min(_INPUT, content.deflated - done))
                if not data:
                    break  # the input is exhausted, but the stream has not ended
                done += len(data)
                self._emit(data)
            out = _inflate(inflater, data, content.file, name)
            self._raw.update(out)
            promised.update(out)
            crc = isal_zlib.crc32(out, crc)
            size += len(out)
        whole = inflater.eof and not inflater.unused_data and done == content.deflated
        if not whole or size != content.size or crc != content.crc32:
            raise _damaged(content.file, name, _NOT_AS_LISTED)
        if content.sha256 is not None and promised.hexdigest() != content.sha256:
            raise _record_lies(content.file, name)

    def _blocks(self, file: Path, offset: int, size: int) -> Iterator[bytes]:
        end = offset + size
        while offset < end and (data := self._read(file, offset, min(_OUTPUT, end - offset))):
            yield data
            offset += len(data)

    def _read(self, file: Path, offset: int, size: int) -> bytes:
        if file not in self._sources:
            self._sources[file] = os.open(file, os.O_RDONLY)
        return os.pread(self._sources[file], size, offset)


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


def _record_lies(file: Path, name: str) -> DamagedFileError:
    return DamagedFileError(
        f"{name} is not what its wheel's RECORD says.",
        where=file,
        why="The sha256 in RECORD differs from that of the file.",
        fix="The wheel is broken or was tampered with; choose another version in matrix.yaml.",
    )
