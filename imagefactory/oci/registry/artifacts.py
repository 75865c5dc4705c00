"""Artifacts: files in a registry that are not images, such as SBOMs, wheels and catalogs.

https://github.com/opencontainers/image-spec/blob/main/manifest.md#guidelines-for-artifact-usage
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from imagefactory.errors.registry import RegistryError
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.store.digests import Digest, canonical_json, sha256_of

EMPTY = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
TITLE = "org.opencontainers.image.title"
"""The annotation that holds the name of a file."""


@dataclass(frozen=True)
class Payload:
    """A part of an artifact: bytes, or a file that is not read into memory."""

    media_type: str
    content: bytes | Path
    annotations: Mapping[str, str] = field(default_factory=dict)
    known_digest: Digest | None = None
    """The digest of a file if it is known, so that the file is only read when it is sent."""

    @classmethod
    def file(
        cls, path: Path, media_type: str, *, name: str | None = None, digest: Digest | None = None
    ) -> Payload:
        """Return a file as a payload, under its own or another name."""
        return cls(media_type, path, {TITLE: name or path.name}, digest)

    def descriptor(self) -> Descriptor:
        """Return its descriptor."""
        if isinstance(self.content, bytes):
            digest, size = f"sha256:{sha256_of(self.content)}", len(self.content)
        else:
            digest, size = self.known_digest or _digest_of(self.content), self.content.stat().st_size
        return Descriptor(self.media_type, Digest(digest), size, annotations=self.annotations)

    def open(self) -> BinaryIO:
        """Open it for reading."""
        return io.BytesIO(self.content) if isinstance(self.content, bytes) else self.content.open("rb")


def artifact_manifest(
    artifact_type: str,
    payloads: Sequence[Descriptor],
    *,
    annotations: Mapping[str, str],
    subject: Descriptor | None = None,
) -> bytes:
    """Return the manifest of an artifact, a pure function of its content."""
    empty = Descriptor(EMPTY_TYPE, Digest(f"sha256:{sha256_of(EMPTY)}"), len(EMPTY))
    document: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": artifact_type,
        "config": empty.document(),
        "layers": [payload.document() for payload in payloads] or [empty.document()],
    }
    if subject is not None:
        # A subject is named, not described: annotations and platform are its own.
        document["subject"] = Descriptor(subject.media_type, subject.digest, subject.size).document()
    if annotations:
        document["annotations"] = dict(annotations)
    return canonical_json(document)


def upload_artifact(
    repository: Repository,
    artifact_type: str,
    payloads: Sequence[Payload],
    *,
    annotations: Mapping[str, str],
    subject: Descriptor | None = None,
) -> bytes:
    """Upload the content of an artifact, and return the manifest that has to follow."""
    empty = Payload(EMPTY_TYPE, EMPTY)
    described = [payload.descriptor() for payload in payloads]
    for payload, descriptor in [(empty, empty.descriptor()), *zip(payloads, described, strict=True)]:
        repository.upload(descriptor.digest, descriptor.size, payload.open)
    return artifact_manifest(artifact_type, described, annotations=annotations, subject=subject)


def push_artifact(
    repository: Repository,
    artifact_type: str,
    payloads: Sequence[Payload],
    *,
    annotations: Mapping[str, str] | None = None,
    tag: str | None = None,
) -> Descriptor:
    """Push an artifact; a tag points to it only once it is complete."""
    body = upload_artifact(repository, artifact_type, payloads, annotations=annotations or {})
    digest = repository.put_manifest(body, MANIFEST_TYPE, tag)
    return Descriptor(MANIFEST_TYPE, digest, len(body), artifact_type, annotations or {})


def contents(repository: Repository, manifest: StoredManifest) -> list[Descriptor]:
    """Return the content of an artifact or an image."""
    try:
        found = [Descriptor.of(layer) for layer in manifest.document()["layers"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RegistryError(
            "That is not an artifact.",
            where=f"{repository.reference.name}@{manifest.digest}",
            why=f"Its manifest has no list of layers that can be read ({type(error).__name__}).",
            fix="Check the tag or digest.",
        ) from None
    return [descriptor for descriptor in found if descriptor.media_type != EMPTY_TYPE]


def _digest_of(path: Path) -> Digest:
    with path.open("rb") as file:
        return Digest(f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}")
