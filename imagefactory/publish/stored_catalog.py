"""The catalog in the registry: one compressed document under the tag `catalog`, written by one at a time."""

import gzip
import random
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from imagefactory.errors import RegistryError
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.artifacts import TITLE, Payload, contents, upload_artifact
from imagefactory.oci.registry.repository import Repository
from imagefactory.oci.registry.tag_writes import claim, replace_tag
from imagefactory.publish.catalog import FORMAT, Catalog, unreadable
from imagefactory.publish.tags import CATALOG
from imagefactory.store.digests import Digest

CATALOG_TYPE: Final = "application/vnd.imagefactory.catalog.v1+json"
"""The type of the artifact, whatever the format of the document: `prune` knows old catalogs by it."""
DOCUMENT_TYPE: Final = f"application/vnd.imagefactory.catalog.v{FORMAT}+json+gzip"
ATTEMPTS: Final = 8
PREVIOUS: Final = "imagefactory.previous"
"""The annotation that names the catalog before, in case somebody has to go back to it."""
LARGEST: Final = 32 * 1024 * 1024
"""Bytes of JSON. Publishing may fill half, which is some 12,000 images."""

CatalogChange = Callable[[Catalog], Catalog]


@dataclass(frozen=True)
class Snapshot:
    """A catalog at one moment, and the digest of its manifest (None before anything is published)."""

    catalog: Catalog
    digest: Digest | None


def read_catalog(repository: Repository) -> Snapshot:
    """Read the catalog of a repository; an empty one if nothing was published yet."""
    manifest = repository.manifest(CATALOG)
    if manifest is None:
        return Snapshot(Catalog(), None)
    where = str(repository.reference.tagged(CATALOG))
    payloads = contents(repository, manifest)
    if [payload.media_type for payload in payloads] != [DOCUMENT_TYPE]:
        raise RegistryError(
            "bad-catalog",
            "The tag `catalog` does not hold a catalog that this factory reads.",
            where=where,
            why=f"Its manifest is of another kind, or an older factory wrote it. It has to hold one {DOCUMENT_TYPE}.",
            fix="Use a repository of the factory's own (`registry` in matrix.yaml, FACTORY_REGISTRY); if an older "
            "factory published there, start with an empty one and publish again.",
        )
    data = repository.blob(payloads[0].digest, LARGEST)
    return Snapshot(Catalog.from_json(_inflated(data, where), where), manifest.digest)


def _inflated(data: bytes, where: str) -> bytes:
    # 31: a gzip header (16) and the largest window (15).
    inflater = zlib.decompressobj(wbits=31)
    try:
        # One byte more than allowed tells a full catalog from one that is too large.
        text = inflater.decompress(data, LARGEST + 1)
    except zlib.error as error:
        raise unreadable(where, f"It is damaged: {error}.") from None
    if len(text) > LARGEST or not inflater.eof:
        raise unreadable(where, f"It is incomplete, or has more than {LARGEST:,} bytes.")
    return text


def _payload(repository: Repository, changed: Catalog, before: Catalog) -> Payload:
    """Compress a catalog, unless it is so large that soon nobody could read it."""
    text = changed.to_json()
    # A prune adds no events but a list of what it deletes, and needs room when publishing no longer has any.
    most = LARGEST // 2 if len(changed.events) > len(before.events) else LARGEST
    if len(text) > most:
        raise RegistryError(
            "catalog-full",
            "The catalog is full.",
            where=str(repository.reference.tagged(CATALOG)),
            why=f"With {len(changed.images):,} images it would have {len(text):,} bytes; {most:,} are allowed.",
            fix="Delete old images: `./inv prune --keep N`, then the same with --delete. No tag was moved.",
        )
    # Without a time in it, the same catalog is the same blob.
    return Payload(DOCUMENT_TYPE, gzip.compress(text, mtime=0), {TITLE: "catalog.json.gz"})


def write_catalog(
    repository: Repository,
    change: CatalogChange,
    *,
    seen: Snapshot | None = None,
    tags: Collection[str] = (),
    events: Collection[str] = (),
    annotations: Mapping[str, str] | None = None,
) -> Snapshot:
    """Change the catalog; if somebody else wrote it meanwhile, read it again and repeat the change.

    Raise if somebody else moved one of `tags`, or pruned the registry, since it was `seen`. `events` are the ids of
    those that `change` adds; `annotations` are for the registry.
    """
    first = latest = seen or read_catalog(repository)
    for attempt in range(ATTEMPTS):
        # A write that came too late to count may have left its events there; `change` adds them again.
        catalog = latest.catalog.without_events(events)
        _refuse_lost(repository, first.catalog, catalog, tags)
        # A prune that had our events before it has kept what they need; to refuse now would leave them there.
        pruned = seen is not None and latest.catalog.pruned != seen.catalog.pruned
        if pruned and not (events and latest.catalog.has_events(events)):
            what = "Somebody pruned the registry at the same moment."
            why = "What this command found there may be deleted."
            raise race_lost(repository, what, why, "Run it again. No tag was moved.")
        changed = change(catalog)
        notes = {**(annotations or {}), **claim(), **({PREVIOUS: latest.digest} if latest.digest else {})}
        payload = _payload(repository, changed, latest.catalog)
        body = upload_artifact(repository, CATALOG_TYPE, [payload], annotations=notes)
        written = replace_tag(repository, CATALOG, latest.digest, body, MANIFEST_TYPE)
        if written is not None:
            return Snapshot(changed, written)
        # A random pause, so that two writers do not keep colliding.
        time.sleep(random.uniform(0, repository.window.wait * (attempt + 1)))  # noqa: S311 - not a secret
        latest = read_catalog(repository)
    raise race_lost(
        repository,
        "The catalog could not be written.",
        f"{ATTEMPTS} times somebody else wrote it at the same moment, or the registry took longer than "
        f"{repository.window.longest:g} s for a request.",
        "Try again when fewer others publish, or when the registry is faster. No tag was moved.",
    )


def race_lost(repository: Repository, what: str, why: str, fix: str) -> RegistryError:
    where = str(repository.reference.tagged(CATALOG))
    return RegistryError("race-lost", what, where=where, why=why, fix=fix)


def _refuse_lost(repository: Repository, first: Catalog, latest: Catalog, tags: Collection[str]) -> None:
    """Raise if somebody else moved one of the tags since the first look."""
    seen = {event.id for event in first.events}
    rivals = (event for event in latest.events if event.id not in seen and {*tags} & event.moved.keys())
    for rival in rivals:
        both = sorted({*tags} & rival.moved.keys())
        raise RegistryError(
            "race-lost",
            "Another publish won the race.",
            where=", ".join(str(repository.reference.tagged(tag)) for tag in both),
            why=f"A {rival.kind} of {rival.image} moved {', '.join(both)} at {rival.time:%Y-%m-%d %H:%M:%S} UTC.",
            fix="Look at `./inv history`; publish again if yours is newer. No tag was moved.",
        )
