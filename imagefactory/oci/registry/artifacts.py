"""Artifacts: content in a registry that is not an image, such as SBOMs, wheels and catalogs.

https://github.com/opencontainers/image-spec/blob/main/manifest.md#guidelines-for-artifact-usage
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.store.digests import Digest, canonical_json, digest_of, file_sha256

TITLE = "org.opencontainers.image.title"  # the annotation that holds the name of a file


@dataclass(frozen=True)
class Payload:
    """A part of an artifact: bytes, or a file that is not read into memory."""

    media_type: str
    content: bytes | Path
    annotations: Mapping[str, str] = field(default_factory=dict)
    known_digest: Digest | None = None  # the digest of a file if it is known, so that the file is read only to send it

    @classmethod
    def file(cls, path: Path, media_type: str, *, digest: Digest | None = None) -> Payload:
        return cls(media_type, path, {TITLE: path.name}, digest)

    def descriptor(self) -> Descriptor:
        if isinstance(self.content, bytes):
            digest, size = digest_of(self.content), len(self.content)
        else:
            size = self.content.stat().st_size
            digest = self.known_digest or Digest(f"sha256:{file_sha256(self.content)}")
        return Descriptor(self.media_type, digest, size, annotations=self.annotations)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.content) if isinstance(self.content, bytes) else self.content.open("rb")


_EMPTY = Payload("application/vnd.oci.empty.v1+json", b"{}")
"""Stands in for the configuration that an artifact does not have."""
_MOST = 1000  # the longest list of contents; engines accept images of 127 layers


def upload_artifact(
    repository: Repository,
    artifact_type: str,
    payloads: Sequence[Payload],
    *,
    annotations: Mapping[str, str],
    subject: Descriptor | None = None,
) -> bytes:
    """Upload the content of an artifact; return its manifest, which the caller has to write."""
    empty, *described = [payload.descriptor() for payload in (_EMPTY, *payloads)]
    for payload, descriptor in zip((*payloads, _EMPTY), (*described, empty), strict=True):
        repository.upload(descriptor.digest, descriptor.size, payload.open)
    document: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": artifact_type,
        "config": empty.document(),
        # The image specification wants at least one; `{}` stands for none.
        "layers": [descriptor.document() for descriptor in described or [empty]],
    }
    if subject is not None:
        # Without annotations and platform, which belong to the subject itself.
        document["subject"] = Descriptor(subject.media_type, subject.digest, subject.size).document()
    if annotations:
        document["annotations"] = dict(annotations)
    return canonical_json(document)


def contents(repository: Repository, manifest: StoredManifest) -> list[Descriptor]:
    where = f"{repository.reference.name}@{manifest.digest}"
    try:
        descriptors = [Descriptor.of(layer) for layer in manifest.document()["layers"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"Its manifest has no readable list of contents ({type(error).__name__})."
        raise repository.error("unusable", where, why) from None
    if len(descriptors) > _MOST:
        raise repository.error("oversized", where, f"It lists {len(descriptors):,} contents.")
    return [descriptor for descriptor in descriptors if descriptor.media_type != _EMPTY.media_type]
