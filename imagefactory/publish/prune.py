"""Pruning: deletes what no kept tag reaches. Published images stay unless a policy says otherwise.

It begins with an inventory of the repository: its tags, indexes, images and attachments, and which of them need which.
An index keeps its images. An image keeps what refers to it, and the `sha256-...` tag that lists these referrers where
the registry does not. Pruning by tags alone would break all of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

from imagefactory.errors import RegistryError
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.image_push import PARALLEL
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.publish.catalog import (
    CATALOG_TYPE,
    PREVIOUS,
    Catalog,
    Published,
    Snapshot,
    now,
    read_catalog,
    write_catalog,
)
from imagefactory.publish.github_packages import GitHubPackages
from imagefactory.publish.tags import CATALOG, STAGING, nightly_date
from imagefactory.store.digests import Digest

_SETTLED = timedelta(days=1)
ManifestKind = Literal["catalog", "index", "image", "list", "attached"]
KINDS: tuple[ManifestKind, ...] = ("catalog", "index", "image", "list", "attached")
"""In the order of deletion: whatever can still be found is complete."""
_ABOUT = re.compile(r"sha256-([0-9a-f]{64})(\..+)?")
_CREATED = "org.opencontainers.image.created"


def subject_of(tag: str) -> Digest | None:
    """Return the manifest that a tag exists for, if it is a list of referrers or a signature."""
    found = _ABOUT.fullmatch(tag)
    return Digest(f"sha256:{found[1]}") if found else None


@dataclass
class Inventory:
    """A repository at the time it was examined."""

    snapshot: Snapshot
    tags: dict[str, Digest] = field(default_factory=dict)
    manifests: dict[Digest, StoredManifest] = field(default_factory=dict)
    referrers: dict[Digest, list[Digest]] = field(default_factory=dict)
    """Manifest -> what is attached to it, by its list of referrers."""

    @property
    def unlisted(self) -> dict[Digest, list[Digest]]:
        """Manifest -> what says that it is attached to it, but was lost from the list."""
        found: dict[Digest, list[Digest]] = {}
        for digest, manifest in self.manifests.items():
            subject = manifest.document().get("subject")
            if subject and digest not in self.referrers.get(subject["digest"], ()):
                found.setdefault(Digest(subject["digest"]), []).append(digest)
        return found

    def tags_on(self, digest: Digest) -> tuple[str, ...]:
        """List the tags that point at a manifest."""
        return tuple(sorted(tag for tag, found in self.tags.items() if found == digest))

    def reach(self, roots: Iterable[Digest]) -> set[Digest]:
        """List manifests and what they keep alive: the images of an index, the attachments of an image."""
        lists: dict[Digest, list[Digest]] = {}
        for tag, listed in self.tags.items():
            subject = subject_of(tag)
            if subject:
                lists.setdefault(subject, []).append(listed)
        unlisted = self.unlisted
        reached: set[Digest] = set()
        waiting = list(roots)
        while waiting:
            digest = waiting.pop()
            if digest not in reached:
                reached.add(digest)
                for parts in (self.referrers, lists, unlisted):
                    waiting.extend(parts.get(digest, ()))
                if digest in self.manifests:
                    waiting.extend(_children(self.manifests[digest]))
        return reached

    def kind(self, digest: Digest) -> ManifestKind:
        document = self.manifests[digest].document()
        if document.get("artifactType") == CATALOG_TYPE:
            return "catalog"
        if any(subject_of(tag) for tag in self.tags_on(digest)):
            return "list"
        if "manifests" in document:
            return "index"
        return "attached" if "subject" in document else "image"

    def attachment(self, digest: Digest) -> Descriptor:
        """Describe an attached artifact as its list of referrers does."""
        manifest = self.manifests[digest]
        kind = manifest.document().get("artifactType")
        return replace(manifest.descriptor(), artifact_type=kind, annotations=_annotations(manifest))

    def age(self, digest: Digest, moment: datetime) -> timedelta | None:
        """Return how long ago something was last attached to an image, which has no date itself; None if unknown."""
        attached = [self.manifests[item] for item in self.referrers.get(digest, ()) if item in self.manifests]
        dates = [str(_annotations(manifest).get(_CREATED, "")) for manifest in attached]
        try:
            return moment - datetime.fromisoformat(max(dates, default=""))
        except (ValueError, TypeError):  # no date, or one without a time zone
            return None


def take_inventory(repository: Repository, also: Iterable[Digest] = ()) -> Inventory:
    """Examine everything that tags, the catalog and `also` lead to."""
    snapshot = read_catalog(repository)
    inventory = Inventory(snapshot)
    with ThreadPoolExecutor(PARALLEL) as pool:
        names = repository.tags()
        for tag, manifest in zip(names, pool.map(repository.manifest, names), strict=True):
            if manifest is not None:  # else it was deleted this very moment
                inventory.tags[tag] = manifest.digest
                inventory.manifests[manifest.digest] = manifest
        catalog = snapshot.catalog
        waiting = {*also, *(image.digest for image in catalog.images)}
        waiting |= {pointer.digest for event in catalog.events for pointer in event.moved.values()}
        looked_at: set[Digest] = set()
        while True:
            unread = sorted(waiting - inventory.manifests.keys())
            found = [manifest for manifest in pool.map(repository.manifest, unread) if manifest is not None]
            inventory.manifests |= {manifest.digest: manifest for manifest in found}
            looked_at |= waiting
            unasked = [digest for digest in inventory.manifests if digest not in inventory.referrers]
            lists = pool.map(partial(referrers.find, repository), unasked)
            for digest, attached in zip(unasked, lists, strict=True):
                inventory.referrers[digest] = [item.digest for item in attached]
            waiting = {
                other
                for digest, manifest in inventory.manifests.items()
                for other in (*_children(manifest), *predecessor(manifest), *inventory.referrers[digest])
            } - looked_at
            if not waiting:
                return inventory


def predecessor(manifest: StoredManifest) -> list[Digest]:
    """Return the catalog that a catalog replaced, if any."""
    previous = _annotations(manifest).get(PREVIOUS)
    return [Digest(previous)] if previous else []


def _annotations(manifest: StoredManifest) -> dict[str, Any]:
    found: dict[str, Any] = manifest.document().get("annotations", {})
    return found


def _children(manifest: StoredManifest) -> list[Digest]:
    return [Digest(item["digest"]) for item in manifest.document().get("manifests", ())]


@dataclass(frozen=True)
class Policy:
    """What to keep besides everything that tags in use reach."""

    staging_days: float = 14
    """Days that an image stays that was pushed but never promoted."""
    nightly_days: float | None = None
    """Days that nightlies stay; None for ever."""
    keep: int | None = None
    """How many of the newest published images of each target stay; None for all."""


@dataclass(frozen=True)
class Deletion:
    """A manifest that nothing kept reaches."""

    digest: Digest
    kind: ManifestKind
    tags: tuple[str, ...]
    size: int
    """The bytes it refers to. Some may be shared with what stays."""


@dataclass(frozen=True)
class Pruning:
    """What goes and what stays."""

    deletions: tuple[Deletion, ...]
    kept: int
    undated: tuple[str, ...]
    """Staging tags that stay because their age is unknown."""
    forgotten: tuple[Digest, ...]
    """Images in the catalog that are gone, or about to go."""

    @property
    def announced(self) -> set[Digest]:
        """What goes, or is gone, and might get a tag otherwise: somebody may be pushing it again."""
        return {item.digest for item in self.deletions if item.kind != "catalog"} | {*self.forgotten}


def plan_pruning(inventory: Inventory, policy: Policy, moment: datetime) -> Pruning:
    """Decide what to delete."""
    catalog = inventory.snapshot.catalog
    moving = [found for tag in catalog.moving_tags() if (found := catalog.pointer(tag)) is not None]
    in_use = {digest for pointer in moving for digest in pointer.images.values()}
    undated: list[str] = []
    roots = {pointer.digest for pointer in moving} | {
        image.digest
        for image in catalog.images
        if image.digest in inventory.manifests
        and (image.digest in in_use or not _outdated(catalog, image, policy, moment))
    }
    for tag, digest in inventory.tags.items():
        if subject_of(tag):
            continue  # stays or goes with what it is about
        if catalog.image(digest) and (tag.startswith(STAGING) or catalog.owner_of(tag) == digest):
            continue  # stays or goes with its image
        if tag.startswith(STAGING):
            age = inventory.age(digest, moment)
            if age is None:
                undated.append(tag)
            if age is not None and age > timedelta(days=policy.staging_days):
                continue
        roots.add(digest)
    newest = inventory.snapshot.digest
    if newest:  # and its predecessor, in case somebody has to go back to it
        roots |= {newest, *predecessor(inventory.manifests[newest])}
    kept = inventory.reach(roots)
    deletions = [
        Deletion(digest, inventory.kind(digest), inventory.tags_on(digest), _size(manifest.document()))
        for digest, manifest in inventory.manifests.items()
        if digest not in kept
    ]
    gone = {item.digest for item in deletions}
    return Pruning(
        deletions=tuple(sorted(deletions, key=lambda item: (KINDS.index(item.kind), item.tags, item.digest))),
        kept=len(kept & inventory.manifests.keys()),
        undated=tuple(sorted(undated)),
        forgotten=tuple(
            image.digest
            for image in catalog.images
            if image.digest in gone or image.digest not in inventory.manifests
        ),
    )


def prune(
    repository: Repository, policy: Policy, *, delete: bool = False, moment: datetime | None = None
) -> Pruning:
    """Find what no kept tag reaches, and delete it if asked to."""
    moment = moment or now()
    packages = GitHubPackages.of(repository.reference)
    remove = packages.delete if packages else repository.delete
    uploaded = packages.versions() if packages else {}
    # What was uploaded just now may be about to get a tag.
    inventory = take_inventory(
        repository, [digest for digest, came in uploaded.items() if moment - came > _SETTLED]
    )
    pruning = plan_pruning(inventory, policy, moment)
    if not delete:
        return pruning
    if pruning.announced:
        _announce(repository, inventory.snapshot, pruning)
    for item in pruning.deletions:
        remove(item.digest)
    before = inventory.snapshot.catalog
    gone = {*pruning.announced, *before.deleting}
    if gone or before.without(pruning.forgotten) != before:
        write_catalog(repository, lambda catalog: catalog.without(pruning.forgotten).with_deleted(gone))
    for subject, lost in inventory.unlisted.items():
        if subject in inventory.manifests and subject not in gone:
            referrers.enlist(repository, subject, *map(inventory.attachment, lost))
    return pruning


def _announce(repository: Repository, seen: Snapshot, pruning: Pruning) -> None:
    """Note in the catalog what is about to be deleted, so that nobody gives it a tag meanwhile."""
    marked = seen.catalog.with_deleting(pruning.announced)

    def mark(catalog: Catalog) -> Catalog:
        if catalog not in (seen.catalog, marked):
            raise RegistryError(
                "race-lost",
                "Somebody published while the registry was being examined.",
                where=str(repository.reference.tagged(CATALOG)),
                why="What was unused then may be in use now.",
                fix="Run `./inv prune` again. Nothing was deleted.",
            )
        return marked

    write_catalog(repository, mark)


def _outdated(catalog: Catalog, image: Published, policy: Policy, moment: datetime) -> bool:
    """Whether the policy lets an unused image go."""
    named = [tag for event in catalog.events if event.image == image.digest for tag in event.named]
    days = [day for tag in named if (day := nightly_date(tag)) is not None]
    if policy.nightly_days is not None and days and (moment.date() - max(days)).days > policy.nightly_days:
        return True
    same = {other.digest for other in catalog.images if other.cell == image.cell}
    promoted = [event.image for event in reversed(catalog.events) if event.kind == "promote"]
    newest = list(dict.fromkeys(digest for digest in promoted if digest in same))
    return policy.keep is not None and image.digest not in newest[: policy.keep]


def _size(document: dict[str, object]) -> int:
    layers = document.get("layers", ())
    return sum(int(layer["size"]) for layer in layers) if isinstance(layers, list) else 0
