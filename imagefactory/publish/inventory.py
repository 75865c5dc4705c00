"""The inventory of a repository: its tags, indexes, images and attachments, and which of them need which.

An index keeps its images. An image keeps what refers to it, and the `sha256-...` tag that lists these referrers where
the registry does not. Pruning by tags alone would break all of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.image_push import PARALLEL
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.publish.catalog import CATALOG_TYPE
from imagefactory.publish.catalog_writes import PREVIOUS, Snapshot, read_catalog
from imagefactory.store.digests import Digest

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

    def tags_on(self, digest: Digest) -> list[str]:
        """List the tags that point at a manifest."""
        return sorted(tag for tag, found in self.tags.items() if found == digest)

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
        """Return the kind of a manifest."""
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

    def created(self, digest: Digest) -> str:
        """Return when something was last attached to an image, which has no date itself; empty if unknown."""
        attached = [self.manifests[item] for item in self.referrers.get(digest, ()) if item in self.manifests]
        return max((str(_annotations(manifest).get(_CREATED, "")) for manifest in attached), default="")


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
