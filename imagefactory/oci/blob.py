"""The result of building a layer, as records, manifests and comparisons use it."""

from __future__ import annotations

from dataclasses import dataclass

from imagefactory.store.digests import Digest


@dataclass(frozen=True)
class Blob:
    """A layer's digests and sizes."""

    diff_id: Digest
    """The digest of the uncompressed tar: stable across engines and compressions."""
    digest: Digest
    """The digest of the blob in a registry: stable within a LAYER_FORMAT."""
    size: int
    unpacked: int
