"""Reads layer blobs: every path with its metadata and a hash of its content, and the digests of blob and tar."""

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO

from isal import igzip

from imagefactory.errors import InputError
from imagefactory.oci.entry import INFLATE_ERROR
from imagefactory.store.atomic import writing
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, Sha256

FACTS = "layer-listing-1"  # the number has to grow when ListedPath changes
READ_ERRORS = (tarfile.TarError, INFLATE_ERROR, EOFError, OSError, ValueError)  # what reading a damaged layer raises
Sink = Callable[[str], IO[bytes] | None]  # returns where to copy the file with a path to, or None
_HEADERS = 64 * 1024  # bytes that tarfile reads at a time; it copies what is left of them for every header
_BLOCK = 1 << 18  # bytes of content that are read at a time


@dataclass(frozen=True)
class ListedPath:
    """One path of a layer, as an engine would unpack it."""

    path: str
    kind: str
    mode: str
    uid: int
    gid: int
    mtime: int
    size: int
    target: str
    sha256: str


_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",  # in archives older than POSIX
    tarfile.LNKTYPE: "hard link",
    tarfile.SYMTYPE: "symlink",
    tarfile.DIRTYPE: "directory",
}


def read_listing(blob: Path) -> tuple[ListedPath, ...]:
    """List a layer blob; raise an error if it is damaged."""
    reading = read_layer(blob)
    if reading.fault:
        raise unreadable(blob, reading.fault)
    return reading.listing


def unreadable(blob: Path, why: str) -> InputError:
    return InputError(
        "damaged-file",
        "A layer cannot be read.",
        where=blob,
        why=why,
        fix="Remove it from the cache (`./inv clean --everything`) and build again.",
    )


def read_stream(stream: IO[bytes], sink: Sink = lambda _: None) -> Iterator[ListedPath]:
    """List an uncompressed layer; copy files to what `sink` returns for their paths."""
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_HEADERS) as archive:
        for member in archive:
            yield _listed(archive, member, sink)


def cached_listing(blob: Path, digest: Digest, store: Store) -> list[ListedPath]:
    memory = store.facts(FACTS, Sha256(digest.partition(":")[2]))
    names = [field.name for field in fields(ListedPath)]
    # Read the layer again if the cached listing is missing or damaged.
    with suppress(FileNotFoundError, TypeError, ValueError, RecursionError):
        return [ListedPath(**dict(zip(names, row, strict=True))) for row in json.loads(memory.read_bytes())]
    listing = list(read_listing(blob))
    remember_listing(listing, digest, store)
    return listing


def remember_listing(listing: Sequence[ListedPath], digest: Digest, store: Store) -> None:
    with writing(store.facts(FACTS, Sha256(digest.partition(":")[2]))) as file:
        file.write(json.dumps([list(vars(entry).values()) for entry in listing]).encode())


def _listed(archive: tarfile.TarFile, member: tarfile.TarInfo, sink: Sink) -> ListedPath:
    path = member.name.removeprefix("./").rstrip("/")
    digest = ""
    if member.isreg():
        sha256, copy = hashlib.sha256(), sink(path)
        for data in _content(archive, member):
            sha256.update(data)
            if copy is not None:
                copy.write(data)
        digest = sha256.hexdigest()
    return ListedPath(
        path=path,
        kind=_KINDS.get(member.type, f"type {member.type!r}"),
        mode=f"{member.mode & 0o7777:04o}",  # Docker includes the file type
        uid=member.uid,
        gid=member.gid,
        mtime=int(member.mtime),
        size=member.size,
        target=member.linkname,
        sha256=digest,
    )


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    """Yield the content of a file, from the stream itself: the buffers of `extractfile` take a fifth of all time."""
    source = archive.extractfile(member) if member.issparse() else archive.fileobj
    assert source is not None  # noqa: S101 - the archive is open, and the member a file
    if not member.issparse():
        source.seek(member.offset_data)
    left = member.size
    while left:
        data = source.read(min(left, _BLOCK))
        if not data:
            raise tarfile.ReadError("unexpected end of data")
        yield data
        left -= len(data)


@dataclass(frozen=True)
class LayerReading:
    """What one pass over a blob found."""

    digest: Digest  # the digest of the blob; empty if it cannot be read at all
    diff_id: Digest  # the digest of what it unpacks to; empty if it does not unpack
    listing: tuple[ListedPath, ...]
    fault: str = ""  # why the listing is not complete


def read_layer(blob: Path, sink: Sink = lambda _: None) -> LayerReading:
    """Read a compressed layer; damage is part of the result, and the digest covers all bytes in any case.

    Files are copied to what `sink` returns for their paths.
    """
    listing: list[ListedPath] = []
    faults: list[Exception] = []

    @contextmanager
    def noting(*errors: type[Exception]) -> Iterator[None]:
        try:
            yield
        except errors as error:
            faults.append(error)

    digest = diff_id = Digest("")
    with noting(OSError), blob.open("rb", buffering=0) as file:
        raw = _Hashing(file)
        with noting(*READ_ERRORS), igzip.open(raw, "rb") as inflated:  # type: ignore[no-untyped-call]
            tar = _Hashing(inflated)
            with noting(*READ_ERRORS):
                listing.extend(read_stream(tar, sink))  # type: ignore[arg-type]  # it only reads
            diff_id = tar.digest()
        digest = raw.digest()
    fault = f"{type(faults[0]).__name__}: {faults[0]}" if faults else ""
    return LayerReading(digest, diff_id, tuple(listing), fault)


class _Hashing:
    """A stream that hashes what is read from it."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._sha256 = hashlib.sha256()

    def readinto(self, buffer: memoryview) -> int:
        size: int = self._source.readinto(buffer)  # type: ignore[attr-defined]  # every binary file has it
        self._sha256.update(buffer[:size])
        return size

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self._sha256.update(data)
        return data

    def digest(self) -> Digest:
        """Return the digest of the whole stream, after reading what is left of it."""
        while self.read(_BLOCK):
            pass
        return Digest(f"sha256:{self._sha256.hexdigest()}")
