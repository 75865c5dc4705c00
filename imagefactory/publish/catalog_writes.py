"""Writes the catalog so that, of two concurrent writers, one wins and the other finds out (oci/registry/tag_writes.py).

A writer that was too slow discards its write and starts over.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from imagefactory.errors.publishing import CatalogError, PromotionLostError
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.artifacts import TITLE, Payload, contents, upload_artifact
from imagefactory.oci.registry.repository import Repository
from imagefactory.oci.registry.tag_writes import claim, replace_tag
from imagefactory.publish.catalog import CATALOG_TYPE, Catalog
from imagefactory.publish.tags import CATALOG
from imagefactory.store.digests import Digest

ATTEMPTS: Final = 8
PREVIOUS: Final = "imagefactory.previous"
_LARGEST = 64 * 1024 * 1024

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
    held = [item for item in contents(repository, manifest) if item.media_type == CATALOG_TYPE]
    if len(held) != 1:
        raise CatalogError(
            "The tag `catalog` does not hold a catalog.",
            where=where,
            why="Its manifest is of another kind.",
            fix="Use a repository of the factory's own (`registry` in matrix.yaml, FACTORY_REGISTRY).",
        )
    digest = held[0].digest
    return Snapshot(Catalog.from_json(repository.blob(digest, _LARGEST), where), manifest.digest)


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
        if seen is not None and not all(map(latest.catalog.has_event, own or [""])):
            _refuse_pruned(repository, seen.catalog, latest.catalog)
        changed = change(latest.catalog.without_events(own))
        written = replace_tag(
            repository, CATALOG, latest.digest, _upload(repository, changed, latest.digest), MANIFEST_TYPE
        )
        if written is not None:
            return Snapshot(changed, written)
        # A random pause, so that two writers do not keep colliding.
        time.sleep(random.uniform(0, repository.window.wait * (attempt + 1)))  # noqa: S311 - not a secret
        latest = read_catalog(repository)
    raise PromotionLostError(
        "The catalog could not be written.",
        where=str(repository.reference.tagged(CATALOG)),
        why=f"{ATTEMPTS} times somebody else wrote it at the same moment, or the registry took longer than "
        f"{repository.window.longest:g} s for a request.",
        fix="Try again when fewer others publish, or when the registry is faster. No tag was moved.",
    )


def _upload(repository: Repository, catalog: Catalog, previous: Digest | None) -> bytes:
    """Upload everything but the tag; return the manifest."""
    annotations = claim() | ({PREVIOUS: previous} if previous else {})
    payload = Payload(CATALOG_TYPE, catalog.to_json(), {TITLE: "catalog.json"})
    return upload_artifact(repository, CATALOG_TYPE, [payload], annotations=annotations)


def _refuse_lost(repository: Repository, first: Catalog, latest: Catalog, tags: Collection[str]) -> None:
    """Raise if somebody else moved one of the tags since the first look."""
    rival = next((event for event in latest.since(first) if set(tags) & set(event.moved)), None)
    if rival is not None:
        both = sorted(set(tags) & set(rival.moved))
        raise PromotionLostError(
            "Another publish won the race.",
            where=", ".join(str(repository.reference.tagged(tag)) for tag in both),
            why=f"A {rival.kind} of {rival.image} moved {', '.join(both)} at {rival.time:%Y-%m-%d %H:%M:%S} UTC.",
            fix="Look at `invoke history`; publish again if yours is newer. No tag was moved.",
        )


def _refuse_pruned(repository: Repository, first: Catalog, latest: Catalog) -> None:
    """Raise if somebody pruned the registry since the first look."""
    if latest.pruned != first.pruned:
        raise PromotionLostError(
            "Somebody pruned the registry at the same moment.",
            where=str(repository.reference.tagged(CATALOG)),
            why="What this command found there may be deleted.",
            fix="Run it again. No tag was moved.",
        )
