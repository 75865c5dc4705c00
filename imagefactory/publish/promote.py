"""Promotion: an image that passed everything gets its tags.

The order of writes makes a crash harmless. First the catalog says what is about to happen; then the tag that
never moves is written, then the moving ones, the most specific first. Each write is a manifest whose content is in the
registry, complete and tested. Running the same promotion again finishes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from imagefactory.errors import FactoryError
from imagefactory.errors.publishing import NotPromotableError, PromotionLostError, TagTakenError
from imagefactory.locks.project import Project
from imagefactory.matrix.matrix import Matrix
from imagefactory.oci.image import INDEX_TYPE
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.image_push import index_document
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.publish.catalog import Catalog, Event, Pointer, Published, now, pointed_at
from imagefactory.publish.catalog_writes import Snapshot, read_catalog, write_catalog
from imagefactory.publish.gate import Candidate, candidate
from imagefactory.publish.outcomes import Outcomes
from imagefactory.publish.staging import Staged
from imagefactory.publish.tags import CATALOG, Tags, refuse_ambiguous, tags_of
from imagefactory.store.digests import Digest, sha256_of


@dataclass(frozen=True)
class Promoted:
    """An image that has its tags now."""

    image: Published
    named: tuple[str, ...]
    moved: tuple[str, ...]


@dataclass(frozen=True)
class Promotion:
    """The result of a promotion: the targets that got their tags, and why others did not."""

    promoted: list[Promoted]
    refused: list[FactoryError]


def promote(
    project: Project,
    repository: Repository,
    staged: Outcomes[Staged],
    *,
    nightly: bool = False,
    again: bool = False,
    moment: datetime | None = None,
) -> Promotion:
    """Move tags to staged images; one that is refused does not stop the others."""
    refuse_ambiguous(project.matrix)
    time = moment or now()
    catalog = read_catalog(repository).catalog

    def check(one: Staged) -> tuple[Candidate, Tags]:
        found = candidate(project, repository, one)
        tags = tags_of(project.matrix, one.plan.cell, one.plan.key, time.date(), nightly=nightly)
        tags = replace(tags, dated=_still_free(repository, found, tags.dated))
        _refuse_taken(repository, catalog, found, tags)
        if not again:
            _refuse_taken_off(catalog, found, tags)
        return found, tags

    checked = staged.then(check)
    ready, refused = list(checked.finished.values()), list(checked.failed.values())
    return Promotion(_promote(project.matrix, repository, ready, time) if ready else [], refused)


def _promote(
    matrix: Matrix, repository: Repository, ready: Sequence[tuple[Candidate, Tags]], moment: datetime
) -> list[Promoted]:
    manifests = Manifests(repository)
    identities = [uuid.uuid4().hex for _ in ready]

    def change(catalog: Catalog) -> Catalog:
        for identity, (found, tags) in zip(identities, ready, strict=True):
            manifests.keep(found.staged.manifest)
            moved = {
                tag: pointer(matrix, manifests, catalog, found.image, catalog.pointer(tag))
                for tag in tags.moving
            }
            dated = [tag for tag in tags.dated if catalog.owner_of(tag) in (None, found.image.digest)]
            event = Event(
                id=identity,
                kind="promote",
                time=moment,
                image=found.image.digest,
                named=(tags.fixed, *dated),
                moved=moved,
            )
            catalog = catalog.with_event(event, found.image)
        return catalog

    tags = {tag for _, own in ready for tag in own.moving}
    written = write_catalog(repository, change, tags=tags, own=identities)
    events = [event for event in written.catalog.events if event.id in identities]
    for event in events:
        for tag in event.named:
            manifests.put(event.image, tag)
    set_tags(repository, manifests, written, [tag for event in events for tag in event.moved], identities)
    found = {candidate.image.digest: candidate.image for candidate, _ in ready}
    return [Promoted(found[event.image], event.named, tuple(event.moved)) for event in events]


class Manifests:
    """The documents that tags point at: images from the registry, and indexes made here."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._known: dict[Digest, StoredManifest] = {}

    def get(self, digest: Digest) -> StoredManifest:
        """Return a document, from the registry unless it was seen before."""
        if digest not in self._known:
            self.keep(self._repository.require_manifest(digest))
        return self._known[digest]

    def keep(self, manifest: StoredManifest) -> None:
        """Remember a document."""
        self._known[manifest.digest] = manifest

    def create(self, manifest: StoredManifest) -> None:
        """Upload a new document, so that whoever reads the catalog finds it."""
        if manifest.digest not in self._known:
            self._repository.put_manifest(manifest.body, manifest.media_type)
            self.keep(manifest)

    def put(self, digest: Digest, tag: str) -> None:
        """Point a tag at a document."""
        manifest = self.get(digest)
        self._repository.put_manifest(manifest.body, manifest.media_type, tag)


def pointer(
    matrix: Matrix, manifests: Manifests, catalog: Catalog, image: Published, current: Pointer | None
) -> Pointer:
    """Work out what a tag has to point at for an image: an index, if the arch has several platforms."""
    known = {known.digest: known for known in (*catalog.images, image)}
    arch = matrix.archs.get(image.arch)
    platforms = arch.platforms if arch else [image.platform]
    images = pointed_at(image, current, known, platforms)
    if len(platforms) == 1:
        return Pointer(digest=image.digest, images=images)
    documents = {platform: manifests.get(digest) for platform, digest in images.items()}
    annotations = documents[image.platform].document().get("annotations", {})
    # GHCR shows a description, a source and licences of an index only when they are annotations of the index.
    body = index_document([_entry(platform, found) for platform, found in documents.items()], annotations)
    digest = Digest(f"sha256:{sha256_of(body)}")
    manifests.create(StoredManifest(digest, INDEX_TYPE, body))
    return Pointer(digest=digest, images=images)


def _entry(platform: str, manifest: StoredManifest) -> Descriptor:
    system, _, machine = platform.partition("/")
    described = {"architecture": machine, "os": system}
    return Descriptor(manifest.media_type, manifest.digest, manifest.size, platform=described)


def set_tags(
    repository: Repository, manifests: Manifests, written: Snapshot, tags: Iterable[str], own: Sequence[str]
) -> None:
    """Point tags where the catalog says until both agree: somebody else may promote at the same time."""
    tags = list(dict.fromkeys(tags))
    done: dict[str, Digest] = {}
    latest = written
    while True:
        wanted = _wanted(latest.catalog, tags)
        for tag in tags:
            if done.get(tag) != wanted[tag]:
                manifests.put(wanted[tag], tag)
                done[tag] = wanted[tag]
        if repository.resolve(CATALOG) == latest.digest:
            return
        latest = read_catalog(repository)
        if not all(latest.catalog.has_event(identity) for identity in own):
            raise PromotionLostError(
                "Somebody else wrote the catalog over this one.",
                where=repository.reference.name,
                why="The registry delayed a write for longer than two writers need to take turns.",
                fix="Run the command again; every tag names a complete and tested image meanwhile.",
            )


def _wanted(catalog: Catalog, tags: Iterable[str]) -> Mapping[str, Digest]:
    return {tag: found.digest for tag in tags if (found := catalog.pointer(tag)) is not None}


def _refuse_taken(repository: Repository, catalog: Catalog, found: Candidate, tags: Tags) -> None:
    """Raise if the fixed tag belongs to another image."""
    owner = catalog.owner_of(tags.fixed) or repository.resolve(tags.fixed)
    if owner is not None and owner != found.image.digest:
        raise TagTakenError(
            f"The tag {tags.fixed} belongs to another image, and never moves.",
            where=str(repository.reference.tagged(tags.fixed)),
            why=f"It names {owner}; this image is {found.image.digest}.",
            fix="The same plan must give the same image: run `invoke verify`. Nothing was written.",
        )


def _still_free(repository: Repository, found: Candidate, tags: Iterable[str]) -> tuple[str, ...]:
    """List the day's tags that no other image has taken: the first image of a day keeps them."""
    return tuple(tag for tag in tags if repository.resolve(tag) in (None, found.image.digest))


def _refuse_taken_off(catalog: Catalog, found: Candidate, tags: Tags) -> None:
    event = catalog.taken_off(found.image.digest, tags.moving)
    if event is not None:
        raise NotPromotableError(
            f"{found.staged.plan.target} was rolled back from this very image.",
            where=found.image.digest,
            why=f"On {event.time:%Y-%m-%d %H:%M} UTC its tags were set back to {event.image}.",
            fix="Fix what was wrong with it, or promote it again with --again.",
        )
