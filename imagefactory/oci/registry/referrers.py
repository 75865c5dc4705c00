"""Referrers: artifacts attached to an image, found by the image's digest.

A registry with the referrers API maintains the list itself. For others, GHCR among them, clients maintain it: as an
index under the tag `sha256-<hex>` of the subject.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#listing-referrers
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from imagefactory.errors.registry import RegistryError
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry.artifacts import Payload, upload_artifact
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.image_push import index_document
from imagefactory.oci.registry.repository import Repository
from imagefactory.oci.registry.wire import RegistryRequest
from imagefactory.store.digests import Digest
from imagefactory.store.json_text import parse_json

_ATTEMPTS = 5
_ONE_AT_A_TIME = threading.Lock()


def fallback_tag(digest: Digest) -> str:
    """Return the tag that holds a manifest's referrers in registries without the API."""
    return digest.replace(":", "-")


def find(repository: Repository, digest: Digest, artifact_type: str | None = None) -> list[Descriptor]:
    """List the referrers of a manifest, of one type or of all."""
    # Some registries reportedly send an empty list instead of saying that they do not have the API.
    found = _from_api(repository, digest, artifact_type) or _from_tag(repository, digest)
    return [item for item in found if artifact_type is None or item.artifact_type == artifact_type]


def attach(
    repository: Repository,
    subject: Descriptor,
    artifact_type: str,
    payloads: Sequence[Payload],
    annotations: Mapping[str, str] | None = None,
) -> Descriptor:
    """Push an artifact with a subject, and list it under the tag if the registry has no API."""
    annotations = annotations or {}
    body = upload_artifact(repository, artifact_type, payloads, annotations=annotations, subject=subject)
    digest, headers = repository.write_manifest(body, MANIFEST_TYPE)
    attached = Descriptor(MANIFEST_TYPE, digest, len(body), artifact_type, annotations)
    if headers.get("OCI-Subject") != subject.digest:
        _list_under_tag(repository, subject.digest, attached)
    return attached


def _from_api(repository: Repository, digest: Digest, artifact_type: str | None) -> list[Descriptor]:
    connection = repository.connection
    params = {"artifactType": artifact_type} if artifact_type else {}
    request = RegistryRequest("GET", connection.url(f"referrers/{digest}"), {"Accept": INDEX_TYPE}, params)
    answer = connection.ask(request, connection.reading)
    if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.BAD_REQUEST):
        return []
    if not answer.ok:
        raise connection.failure(answer, "list referrers")
    return _descriptors(repository, digest, answer.body)


def _from_tag(repository: Repository, digest: Digest) -> list[Descriptor]:
    index = repository.manifest(fallback_tag(digest))
    return _descriptors(repository, digest, index.body) if index else []


def _descriptors(repository: Repository, digest: Digest, body: bytes) -> list[Descriptor]:
    try:
        return [Descriptor.of(item) for item in parse_json(body).get("manifests") or []]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RegistryError(
            "The list of an image's referrers cannot be read.",
            where=f"{repository.reference.name}:{fallback_tag(digest)}",
            why=f"It is not an index ({type(error).__name__}).",
            fix="If the registry has that list under a tag, delete the tag and attach again.",
        ) from None


def _list_under_tag(repository: Repository, subject: Digest, attached: Descriptor) -> None:
    """Add to the list under the tag, and check afterwards: another process may write it at the same time."""
    with _ONE_AT_A_TIME:
        for _ in range(_ATTEMPTS):
            listed = _from_tag(repository, subject)
            if any(item.digest == attached.digest for item in listed):
                return
            repository.put_manifest(index_document([*listed, attached]), INDEX_TYPE, fallback_tag(subject))
    raise RegistryError(
        "An attached artifact keeps disappearing from the list of referrers.",
        where=f"{repository.reference.name}:{fallback_tag(subject)}",
        why="Another process writes the same list at the same time.",
        fix="Run the command again when nothing else attaches to this image.",
    )
