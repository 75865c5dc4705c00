"""Layer blobs: multi-member gzip with the deflate streams of wheels copied, not recompressed.

RFC 1952 allows a gzip file to consist of several members, each of which is a header, a raw deflate stream, a CRC-32 and
a size. A zip member already has the last three. Copied streams are still inflated once: for the digest of the
uncompressed layer, and to check them against the wheel's RECORD.

If the blob's digest is known in advance, nothing is inflated: the digest proves that the bytes are those of an earlier
build that checked everything.
"""

import hashlib
import struct
from typing import BinaryIO

import deflate

from imagefactory.oci.entry import Content, DeflatedSlice
from imagefactory.oci.format import COMPRESSION_LEVEL, MEMBER_LIMIT, SPLICE_FROM
from imagefactory.oci.image import Blob
from imagefactory.store.digests import Digest

_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Magic, deflate, no flags (so no name), no time, operating system unknown (255): the same on every machine."""


def _member(data: bytes) -> bytes:
    stream = deflate.deflate_compress(data, COMPRESSION_LEVEL)
    return b"".join((_HEADER, stream, struct.pack("<II", deflate.crc32(data), len(data))))


_ZEROS = bytes(MEMBER_LIMIT)
_ZEROS_MEMBER = _member(_ZEROS)  # slimmed libraries have thousands of them


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
        self.size = 0
        self.unpacked = 0

    def write(self, data: bytes) -> None:
        self.unpacked += len(data)
        self._pending.append(data)
        self._pending_size += len(data)
        if self._pending_size >= MEMBER_LIMIT:
            self._compress_pending(keep=self._pending_size % MEMBER_LIMIT)

    def add(self, content: Content, name: str) -> None:
        """Add a file's content, copied or compressed as the format prescribes."""
        if isinstance(content, DeflatedSlice) and content.size >= SPLICE_FROM:
            self._splice(content, name)
        else:
            for data in content.blocks(name, check=self._expected is None):
                self.write(data)

    def finish(self) -> Blob:
        self._compress_pending()
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
            member = bytes(data[start : min(start + MEMBER_LIMIT, cut)])  # compared faster than a view
            self._emit(_ZEROS_MEMBER if member == _ZEROS else _member(member))

    def _splice(self, content: DeflatedSlice, name: str) -> None:
        self._compress_pending()  # what precedes it in the tar has to precede it in the blob
        self._emit(_HEADER)
        if self._expected is None:
            for data in content.blocks(name, tap=self._emit):
                self._raw.update(data)
        else:
            for data in content.stored():
                self._emit(data)
        self.unpacked += content.size
        # RFC 1952 counts the size modulo 2^32.
        self._emit(struct.pack("<II", content.crc32, content.size & 0xFFFFFFFF))
