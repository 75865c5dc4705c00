"""Referrers: what was attached to an image, found from the image.

A registry with the referrers API keeps the list itself. For others, GHCR among them, clients keep it: as an index
under the tag `sha256-<hex>` of the subject.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#listing-referrers
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from imagefactory.errors.registry import RegistryError
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry.artifacts import Payload, upload_artifact
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.store.digests import Digest, canonical_json

_ATTEMPTS = 5
_ONE_AT_A_TIME = threading.Lock()


def fallback_tag(digest: Digest) -> str:
    """Name the tag that holds the list for a manifest in registries without the API."""
    return digest.replace(":", "-")


def find(repository: Repository, digest: Digest, artifact_type: str | None = None) -> list[Descriptor]:
    """List what refers to a manifest, of one type or of all."""
    # There are reports of registries that answer with an empty list where they should say that they keep none.
    found = _from_api(repository, digest, artifact_type) or _from_tag(repository, digest)
    return [item for item in found if artifact_type is None or item.artifact_type == artifact_type]


def attach(
    repository: Repository,
    subject: Descriptor,
    artifact_type: str,
    payloads: Sequence[Payload],
    annotations: Mapping[str, str] | None = None,
) -> Descriptor:
    """Push an artifact that names its subject, and list it where the registry does not."""
    annotations = annotations or {}
    body = upload_artifact(repository, artifact_type, payloads, annotations=annotations, subject=subject)
    digest, headers = repository.write_manifest(body, MANIFEST_TYPE)
    attached = Descriptor(MANIFEST_TYPE, digest, len(body), artifact_type, annotations)
    if headers.get("OCI-Subject") != subject.digest:
        _list_under_tag(repository, subject.digest, attached)
    return attached


def _from_api(repository: Repository, digest: Digest, artifact_type: str | None) -> list[Descriptor]:
    connection = repository.connection
    answer = connection.ask(
        "GET",
        connection.url(f"referrers/{digest}"),
        scopes=(connection.scope(write=False),),
        params={"artifactType": artifact_type} if artifact_type else {},
        headers={"Accept": INDEX_TYPE},
    )
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
        return [Descriptor.of(item) for item in json.loads(body).get("manifests") or []]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RegistryError(
            "The list of what refers to an image cannot be read.",
            where=f"{repository.reference.name}:{fallback_tag(digest)}",
            why=f"It is not an index ({type(error).__name__}).",
            fix="If the registry keeps that list under a tag, remove the tag and attach again.",
        ) from None


def _list_under_tag(repository: Repository, subject: Digest, attached: Descriptor) -> None:
    """Add to the list under the tag. Somebody else may do that at the same time, so look again afterwards."""
    with _ONE_AT_A_TIME:
        for _ in range(_ATTEMPTS):
            listed = _from_tag(repository, subject)
            if any(item.digest == attached.digest for item in listed):
                return
            index = {
                "schemaVersion": 2,
                "mediaType": INDEX_TYPE,
                "manifests": [item.document() for item in [*listed, attached]],
            }
            repository.put_manifest(canonical_json(index), INDEX_TYPE, fallback_tag(subject))
    raise RegistryError(
        "What was attached to an image does not stay in the list.",
        where=f"{repository.reference.name}:{fallback_tag(subject)}",
        why="Somebody else writes the same list at the same time.",
        fix="Run the command again when nobody else attaches something to this image.",
    )
