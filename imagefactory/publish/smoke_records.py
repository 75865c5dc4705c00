"""Smoke records in the registry, attached to the image that was tested."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import TITLE, Payload, contents
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.smoke.record import SmokeRecord
from imagefactory.store.digests import Digest, Sha256

SMOKE_TYPE: Final = "application/vnd.imagefactory.smoke.v1+json"


def attach_record(repository: Repository, record: SmokeRecord) -> Descriptor:
    """Attach a smoke record to its image, whether the image passed or not."""
    subject = repository.require_manifest(record.digest).descriptor()
    payload = Payload(SMOKE_TYPE, record.to_json().encode(), {TITLE: "smoke.json"})
    created = {"org.opencontainers.image.created": record.started.isoformat(timespec="seconds")}
    return referrers.attach(repository, subject, SMOKE_TYPE, [payload], created)


def read_records(repository: Repository, digest: Digest, key: Sha256) -> SmokeRecord | None:
    """Merge all smoke records of an image."""
    return merge_records(
        records_among(repository, referrers.find(repository, digest, SMOKE_TYPE)), digest, key
    )


def records_among(repository: Repository, attached: Iterable[Descriptor]) -> list[SmokeRecord]:
    """Read the smoke records among what is attached to an image."""
    return [
        SmokeRecord.from_json(
            repository.blob(item.digest), where=f"{repository.reference.name}@{referrer.digest}"
        )
        for referrer in attached
        if referrer.artifact_type == SMOKE_TYPE
        if (manifest := repository.manifest(referrer.digest))  # a list may name what was deleted
        for item in contents(repository, manifest)
        if item.media_type == SMOKE_TYPE
    ]


def merge_records(records: Iterable[SmokeRecord], digest: Digest, key: Sha256) -> SmokeRecord | None:
    """Merge the records of an image; of a level that ran more than once, the last result counts."""
    # A record counts for the image that it names, whatever it is attached to.
    own = [record for record in records if (record.digest, record.plan_key) == (digest, key)]
    merged: SmokeRecord | None = None
    for record in sorted(own, key=lambda record: record.started):
        merged = record.with_earlier(merged) if merged else record
    return merged
