"""Lists the content of a layer blob: every path with its metadata and a hash of its content."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO

from isal import igzip

from imagefactory.errors.layers import DamagedFileError
from imagefactory.oci.gzip import INFLATE_ERROR
from imagefactory.store.atomic import writing
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, Sha256

FACTS = "layer-listing-1"


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
    tarfile.AREGTYPE: "file",
    tarfile.LNKTYPE: "hard link",
    tarfile.SYMTYPE: "symlink",
    tarfile.DIRTYPE: "directory",
}


def read_listing(blob: Path) -> Iterator[ListedPath]:
    """List a layer blob, compressed or not."""
    try:
        with blob.open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            yield from read_stream(igzip.open(raw, "rb") if compressed else raw)  # type: ignore[no-untyped-call]
    except (tarfile.TarError, INFLATE_ERROR, EOFError, OSError, ValueError) as error:
        raise DamagedFileError(
            "A layer cannot be read.",
            where=blob,
            why=f"{type(error).__name__}: {error}",
            fix="Remove it from the cache (`invoke clean --everything`) and build again.",
        ) from None


def read_stream(stream: IO[bytes]) -> Iterator[ListedPath]:
    """List an uncompressed layer."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            yield _listed(archive, member)


def cached_listing(blob: Path, digest: Digest, store: Store) -> list[ListedPath]:
    """List a layer blob, or return the cached listing for its digest."""
    memory = store.facts(FACTS, Sha256(digest.partition(":")[2]))
    names = [field.name for field in fields(ListedPath)]
    # Read the layer again if the cached listing is missing or damaged.
    with suppress(FileNotFoundError, TypeError, ValueError, RecursionError):
        return [ListedPath(**dict(zip(names, row, strict=True))) for row in json.loads(memory.read_bytes())]
    listing = list(read_listing(blob))
    with writing(memory) as file:
        file.write(json.dumps([list(asdict(entry).values()) for entry in listing]).encode())
    return listing


def _listed(archive: tarfile.TarFile, member: tarfile.TarInfo) -> ListedPath:
    digest = ""
    if member.isreg():
        content = archive.extractfile(member)
        digest = hashlib.file_digest(content, "sha256").hexdigest() if content is not None else ""  # type: ignore[arg-type]
    return ListedPath(
        path=member.name.removeprefix("./").rstrip("/"),
        kind=_KINDS.get(member.type, f"type {member.type!r}"),
        mode=f"{member.mode & 0o7777:04o}",  # Docker includes the file type
        uid=member.uid,
        gid=member.gid,
        mtime=int(member.mtime),
        size=member.size,
        target=member.linkname,
        sha256=digest,
    )
