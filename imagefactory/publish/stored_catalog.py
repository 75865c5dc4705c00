"""The catalog in the registry: an artifact of compressed pages under the tag `catalog`, written by one at a time."""

import gzip
import random
import time
import zlib
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from imagefactory.errors import RegistryError
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.artifacts import TITLE, Payload, artifact_manifest, contents
from imagefactory.oci.registry.image_push import PARALLEL
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.oci.registry.tag_writes import claim, replace_tag
from imagefactory.publish.catalog import Catalog, joined, unreadable
from imagefactory.publish.tags import CATALOG
from imagefactory.store.digests import Digest

CATALOG_TYPE: Final = "application/vnd.imagefactory.catalog.v1+json"
"""The type of the artifact; also of the single page that catalogs of format 1 had."""
PAGE_TYPE: Final = "application/vnd.imagefactory.catalog.v2+json+gzip"
ATTEMPTS: Final = 8
PREVIOUS: Final = "imagefactory.previous"
MOST_PAGES: Final = 4096
LARGEST_PAGE: Final = 80 * 1024 * 1024
LARGEST: Final = 512 * 1024 * 1024
"""Bytes of JSON, all pages together. Publishing may fill half, which is some 200,000 images."""

CatalogChange = Callable[[Catalog], Catalog]


@dataclass(frozen=True)
class StoredPage:
    """A page as the registry has it."""

    content: Catalog
    descriptor: Descriptor
    size: int
    """Bytes of JSON."""


@dataclass(frozen=True)
class Snapshot:
    """A catalog at one moment, and the digest of its manifest (None before anything is published)."""

    catalog: Catalog
    digest: Digest | None
    pages: tuple[StoredPage, ...] = ()


def read_catalog(repository: Repository) -> Snapshot:
    """Read the catalog of a repository; an empty one if nothing was published yet."""
    manifest = repository.manifest(CATALOG)
    if manifest is None:
        return Snapshot(Catalog(), None)
    where = str(repository.reference.tagged(CATALOG))
    held = [item for item in contents(repository, manifest) if item.media_type in (PAGE_TYPE, CATALOG_TYPE)]
    if not held:
        raise RegistryError(
            "bad-catalog",
            "The tag `catalog` does not hold a catalog.",
            where=where,
            why="Its manifest is of another kind.",
            fix="Use a repository of the factory's own (`registry` in matrix.yaml, FACTORY_REGISTRY).",
        )
    if len(held) > MOST_PAGES or sum(item.size for item in held) > LARGEST:
        raise unreadable(where, f"It has more than {MOST_PAGES:,} pages, or more than {LARGEST:,} bytes.")
    pages: list[StoredPage] = []
    with ThreadPoolExecutor(PARALLEL) as pool:
        left, blobs = LARGEST, pool.map(lambda item: repository.blob(item.digest, LARGEST_PAGE), held)
        for item, data in zip(held, blobs, strict=True):
            text = _inflated(data, min(left, LARGEST_PAGE), where) if item.media_type == PAGE_TYPE else data
            left -= len(text)
            pages.append(StoredPage(Catalog.from_json(text, where), item, len(text)))
    return Snapshot(joined(page.content for page in pages), manifest.digest, tuple(pages))


def _inflated(data: bytes, most: int, where: str) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    try:
        text = inflater.decompress(data, most + 1)
    except zlib.error as error:
        raise unreadable(where, f"A page is damaged: {error}.") from None
    if len(text) > most or not inflater.eof:
        raise unreadable(where, f"A page is incomplete, or has more than {most:,} bytes.")
    return text


def _store(repository: Repository, changed: Catalog, before: Snapshot) -> tuple[StoredPage, ...]:
    """Upload the pages that the registry does not have, unless nobody could read them all."""

    def first(page: Catalog) -> str:
        return page.events[0].id if page.events else ""

    there = {first(page.content): page for page in before.pages if page.descriptor.media_type == PAGE_TYPE}
    pages: list[StoredPage] = []
    new: list[Payload] = []
    for number, content in enumerate(changed.pages()):
        page = there.get(first(content))
        if page is None or page.content != content:
            text = content.to_json()
            new.append(Payload(PAGE_TYPE, gzip.compress(text, mtime=0), {TITLE: f"catalog-{number}.json.gz"}))
            page = StoredPage(content, new[-1].descriptor(), len(text))
        pages.append(page)
    # A prune adds no events but a list of what it deletes, and needs room when publishing no longer has any.
    share = 2 if len(changed.events) > len(before.catalog.events) else 1
    if (
        len(pages) * share > MOST_PAGES
        or max(page.size for page in pages) * share > LARGEST_PAGE
        or sum(page.size for page in pages) * share > LARGEST
    ):
        raise RegistryError(
            "catalog-full",
            "The catalog is full.",
            where=str(repository.reference.tagged(CATALOG)),
            why=f"It would have {len(changed.images):,} images, and soon nobody could read it any more: "
            f"{LARGEST // share:,} bytes, {LARGEST_PAGE // share:,} in one page, or {MOST_PAGES // share:,} pages.",
            fix="Delete old images: `./inv prune --keep N`, then the same with --delete. No tag was moved.",
        )
    for payload in new:
        descriptor = payload.descriptor()
        repository.upload(descriptor.digest, descriptor.size, payload.open)
    return tuple(pages)


def write_catalog(
    repository: Repository,
    change: CatalogChange,
    *,
    seen: Snapshot | None = None,
    tags: Collection[str] = (),
    own: Collection[str] = (),
) -> Snapshot:
    """Change the catalog, retrying until nobody interferes.

    Raise if somebody else moved one of `tags`, or pruned the registry, since `seen`.
    `own` names the events that `change` adds: a write that came too late to count may have left them there.
    """
    latest = read_catalog(repository)
    first = seen or latest
    for attempt in range(ATTEMPTS):
        _refuse_lost(repository, first.catalog, latest.catalog.without_events(own), tags)
        # A prune that had our events before it has kept what they need; to refuse now would leave them there.
        pruned = seen is not None and latest.catalog.pruned != seen.catalog.pruned
        if pruned and not (own and latest.catalog.has_events(own)):
            what = "Somebody pruned the registry at the same moment."
            why = "What this command found there may be deleted."
            raise race_lost(repository, what, why, "Run it again. No tag was moved.")
        changed = change(latest.catalog.without_events(own))
        annotations = claim() | ({PREVIOUS: latest.digest} if latest.digest else {})
        pages = _store(repository, changed, latest)
        described = [page.descriptor for page in pages]
        body = artifact_manifest(repository, CATALOG_TYPE, described, annotations=annotations)
        written = replace_tag(repository, CATALOG, latest.digest, body, MANIFEST_TYPE)
        if written is not None:
            return Snapshot(changed, written, pages)
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
    known = {event.id for event in first.events}
    rivals = (event for event in latest.events if event.id not in known and {*tags} & event.moved.keys())
    for rival in rivals:
        both = sorted({*tags} & rival.moved.keys())
        raise RegistryError(
            "race-lost",
            "Another publish won the race.",
            where=", ".join(str(repository.reference.tagged(tag)) for tag in both),
            why=f"A {rival.kind} of {rival.image} moved {', '.join(both)} at {rival.time:%Y-%m-%d %H:%M:%S} UTC.",
            fix="Look at `./inv history`; publish again if yours is newer. No tag was moved.",
        )
