"""Image configuration and manifest: the two JSON documents that make an image out of layer blobs.

Both are pure functions of the plan and of what its layers came out as, so the digest of an image is known as soon as
those are, whether or not the blobs are at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from imagefactory.oci.blob import Blob
from imagefactory.store.digests import Digest, sha256_of

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True)
class Image:
    """An image as documents: they name the layer blobs but do not contain them."""

    platform: str
    config: bytes
    manifest: bytes
    layers: tuple[Blob, ...]

    @property
    def config_digest(self) -> Digest:
        """Name the configuration; Docker calls this the image's id."""
        return Digest(f"sha256:{sha256_of(self.config)}")

    @property
    def digest(self) -> Digest:
        """Name the image."""
        return Digest(f"sha256:{sha256_of(self.manifest)}")
