"""Referrers: artifacts attached to an image, found by the image's digest.

A registry with the referrers API maintains the list itself. For others, GHCR among them, clients maintain it: as an
index under the tag `sha256-<hex>` of the subject.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md#listing-referrers
"""

import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus

from imagefactory.errors import NO_CONTENT, RegistryError
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry.artifacts import Payload, upload_artifact
from imagefactory.oci.registry.image_push import index_document
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.oci.registry.responses import RegistryRequest
from imagefactory.oci.registry.tag_writes import claim, replace_tag
from imagefactory.store.digests import Digest, parse_json

CREATED = "org.opencontainers.image.created"
"""The annotation with the date of an attachment."""
_ATTEMPTS = 8
_ONE_AT_A_TIME: dict[str, threading.Lock] = {}  # for each list: the threads of this process take turns


@dataclass(frozen=True)
class Attachment:
    """An artifact to attach to an image."""

    artifact_type: str
    payloads: Sequence[Payload]
    annotations: Mapping[str, str] = field(default_factory=dict)


def fallback_tag(digest: Digest) -> str:
    """Return the tag that holds a manifest's referrers in registries without the API."""
    return digest.replace(":", "-")


def find(repository: Repository, digest: Digest, artifact_type: str | None = None) -> list[Descriptor]:
    # A registry that has learned the API may not know what was listed under the tag before.
    index = repository.manifest(fallback_tag(digest))
    by_digest: dict[Digest, Descriptor] = {}
    listed = _entries(repository, digest, index.body if index else None)
    # A registry may ignore the filter by type.
    for referrer in (*_from_api(repository, digest, artifact_type), *listed):
        if artifact_type is None or referrer.artifact_type == artifact_type:
            by_digest.setdefault(referrer.digest, referrer)
    return list(by_digest.values())


def dated(created: datetime) -> dict[str, str]:
    """Return the annotation with the date of an attachment."""
    return {CREATED: created.isoformat(timespec="seconds")}


def attach(repository: Repository, subject: Descriptor, artifact_type: str, payloads: Sequence[Payload]) -> Descriptor:
    [attached] = attach_many(repository, subject, [Attachment(artifact_type, payloads)])
    return attached


def attach_many(repository: Repository, subject: Descriptor, attachments: Iterable[Attachment]) -> list[Descriptor]:
    """Attach several artifacts; where they have to be listed under the tag, all with one write, which takes a wait."""
    attached: list[Descriptor] = []
    unlisted: list[Descriptor] = []
    for attachment in attachments:
        body, digest, headers = _push(repository, subject, attachment)
        described = Descriptor(MANIFEST_TYPE, digest, len(body), attachment.artifact_type, attachment.annotations)
        attached.append(described)
        # With this header, a registry confirms that it lists the artifact itself.
        if headers.get("OCI-Subject") != subject.digest:
            unlisted.append(described)
    if unlisted:
        enlist(repository, subject.digest, *unlisted)
    return attached


def _push(
    repository: Repository, subject: Descriptor, attachment: Attachment, *, again: bool = True
) -> tuple[bytes, Digest, Mapping[str, str]]:
    body = upload_artifact(
        repository,
        attachment.artifact_type,
        attachment.payloads,
        annotations=attachment.annotations,
        subject=subject,
    )
    try:
        return body, *repository.write_manifest(body, MANIFEST_TYPE)
    except RegistryError as error:
        # A registry may lose a blob that two clients finish at once, such as the empty configuration of all artifacts.
        if error.name != NO_CONTENT or not again:
            raise
        return _push(repository, subject, attachment, again=False)


def has_api(repository: Repository, digest: Digest) -> bool:
    """Whether a registry lists referrers itself; `digest` is of a manifest that it has."""
    url = repository.url(f"referrers/{digest}")
    return repository.ask(RegistryRequest("GET", url, headers={"Accept": INDEX_TYPE})).ok


def _from_api(repository: Repository, digest: Digest, artifact_type: str | None) -> list[Descriptor]:
    params = {"artifactType": artifact_type} if artifact_type else {}
    url, headers = repository.url(f"referrers/{digest}"), {"Accept": INDEX_TYPE}
    answer = repository.ask(RegistryRequest("GET", url, headers=headers, params=params))
    # 404 is the specification's answer without the API; some registries have others.
    if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.BAD_REQUEST):
        return []
    if not answer.ok:
        raise repository.failure(answer, "list referrers")
    return _entries(repository, digest, answer.body)


def _entries(repository: Repository, digest: Digest, body: bytes | None) -> list[Descriptor]:
    if body is None:
        return []
    try:
        listed = parse_json(body)
        return [Descriptor.of(entry) for entry in listed.get("manifests") or []]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        where = f"{repository.reference.name}:{fallback_tag(digest)}"
        raise repository.error("unusable", where, f"It is no index of referrers ({type(error).__name__}).") from None


def enlist(repository: Repository, subject: Digest, *attached: Descriptor) -> None:
    """Add to the list under the tag, so that no entry is lost when other processes do the same."""
    tag = fallback_tag(subject)
    with _ONE_AT_A_TIME.setdefault(f"{repository.reference.name}:{tag}", threading.Lock()):
        for attempt in range(_ATTEMPTS):
            index = repository.manifest(tag)
            listed = _entries(repository, subject, index.body if index else None)
            digests = {entry.digest for entry in listed}
            missing = [entry for entry in attached if entry.digest not in digests]
            # An entry that this call wrote counts only once nobody can overwrite it any more.
            if not missing and attempt == 0:
                return
            seen = index.digest if index else None
            document = index_document([*listed, *missing], claim())
            try:
                written = replace_tag(repository, tag, seen, document, INDEX_TYPE)
            except RegistryError as error:
                if error.name != NO_CONTENT:
                    raise
                # Somebody deleted what is listed, and not the list.
                present = [entry for entry in listed if repository.resolve(entry.digest)]
                document = index_document([*present, *missing], claim())
                written = replace_tag(repository, tag, seen, document, INDEX_TYPE)
            if written:
                return
            time.sleep(random.uniform(0, repository.window.wait * (attempt + 1)))  # noqa: S311 - not a secret
    raise RegistryError(
        "attachment-lost",
        "An artifact could not be added to the list of referrers.",
        where=f"{repository.reference.name}:{tag}",
        why=f"{_ATTEMPTS} times another process wrote the same list at the same moment, or the registry took longer "
        f"than {repository.window.longest:g} s for a request.",
        fix="It is stored, but nobody finds it yet: run the command again when nothing else attaches to this image.",
    )
