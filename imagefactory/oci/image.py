"""An image: its configuration and manifest, two JSON documents, and the blobs of its layers."""

from __future__ import annotations

from dataclasses import dataclass

from imagefactory.store.digests import Digest, digest_of

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True)
class Image:
    """The documents of an image, without its layer blobs."""

    platform: str
    config: bytes
    manifest: bytes
    layers: tuple[Blob, ...]

    @property
    def config_digest(self) -> Digest:
        """The digest of the configuration, which Docker calls the image's id."""
        return digest_of(self.config)

    @property
    def digest(self) -> Digest:
        return digest_of(self.manifest)


@dataclass(frozen=True)
class Blob:
    """A layer's digests and sizes."""

    diff_id: Digest  # the digest of the uncompressed tar: stable across engines and compressions
    digest: Digest  # the digest of the blob in a registry: stable within a LAYER_FORMAT
    size: int
    unpacked: int
