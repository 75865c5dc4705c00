"""Indexes: one name for the images of several platforms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagefactory.content import canonical_json, sha256_of
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE


def index_document(images: Mapping[str, bytes], annotations: Mapping[str, str]) -> bytes:
    """Write the index of images, given platform -> manifest; the same images give the same bytes."""
    # GHCR shows a description, a source and licences of an index only when they are annotations of the index.
    document: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [_entry(platform, manifest) for platform, manifest in sorted(images.items())],
        "annotations": dict(annotations),
    }
    return canonical_json(document)


def _entry(platform: str, manifest: bytes) -> dict[str, object]:
    system, _, machine = platform.partition("/")
    return {
        "mediaType": MANIFEST_TYPE,
        "digest": f"sha256:{sha256_of(manifest)}",
        "size": len(manifest),
        "platform": {"architecture": machine, "os": system},
    }
