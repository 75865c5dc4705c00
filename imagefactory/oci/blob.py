"""What a layer comes out as: the value that records, manifests and comparisons are made of."""

from __future__ import annotations

from dataclasses import dataclass

from imagefactory.store.digests import Digest


@dataclass(frozen=True)
class Blob:
    """A layer's digests and sizes."""

    diff_id: Digest
    """The uncompressed tar: the contract across engines and compressions."""
    digest: Digest
    """The blob as a registry stores it: the contract within a LAYER_FORMAT."""
    size: int
    unpacked: int
