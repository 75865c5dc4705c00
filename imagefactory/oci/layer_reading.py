"""Reads a layer blob once: its digest, the digest of the tar in it, its listing, and files that somebody needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from isal import igzip

from imagefactory.oci.listing import READ_ERRORS, ListedPath, Sink, read_stream
from imagefactory.store.digests import Digest

_BLOCK = 1 << 20


@dataclass(frozen=True)
class LayerReading:
    """What one pass over a blob found."""

    digest: Digest
    """The digest of the blob; empty if it cannot be read at all."""
    diff_id: Digest
    """The digest of what it unpacks to; empty if it does not unpack."""
    listing: tuple[ListedPath, ...]
    fault: str = ""
    """Why the listing is not complete."""


def read_layer(blob: Path, sink: Sink = lambda _: None) -> LayerReading:
    """Read a compressed layer; damage is part of the result, and the digest covers all bytes in any case.

    Files are copied to what `sink` returns for their paths.
    """
    listing: list[ListedPath] = []
    faults: list[Exception] = []

    def attempt(step: Callable[[], object]) -> None:
        try:
            step()
        except READ_ERRORS as error:
            faults.append(error)

    def unpack() -> None:
        with igzip.open(raw, "rb") as inflated:  # type: ignore[no-untyped-call]
            tar = _Hashing(inflated)
            attempt(lambda: listing.extend(read_stream(tar, sink)))  # type: ignore[arg-type]  # it only reads
            diff_ids.append(tar.digest())

    diff_ids: list[Digest] = []
    digest = Digest("")
    try:
        with blob.open("rb", buffering=0) as file:
            raw = _Hashing(file)
            attempt(unpack)
            digest = raw.digest()
    except OSError as error:
        faults.append(error)
    fault = f"{type(faults[0]).__name__}: {faults[0]}" if faults else ""
    return LayerReading(digest, diff_ids[0] if diff_ids else Digest(""), tuple(listing), fault)


class _Hashing:
    """A stream that hashes what is read from it."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._sha256 = hashlib.sha256()

    def readinto(self, buffer: memoryview) -> int:
        """Read as igzip does."""
        size: int = self._source.readinto(buffer)  # type: ignore[attr-defined]  # every binary file has it
        self._sha256.update(buffer[:size])
        return size

    def read(self, size: int) -> bytes:
        """Read as tarfile does."""
        data = self._source.read(size)
        self._sha256.update(data)
        return data

    def digest(self) -> Digest:
        """Return the digest of the whole stream, after reading what is left of it."""
        while self.read(_BLOCK):
            pass
        return Digest(f"sha256:{self._sha256.hexdigest()}")
