"""The last step: gives its tags to an image that passed everything.

The order of writes makes a crash harmless. First the catalog records what is about to happen; then the tag that never
moves is written, then the moving ones, the most specific first. Each tag names a manifest whose content is in the
registry, complete and tested. Running the same promotion again finishes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from imagefactory.errors import FactoryError
from imagefactory.oci.image import INDEX_TYPE
from imagefactory.oci.registry.image_push import index_document
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.project.cells import preferred_version
from imagefactory.project.matrix import Matrix
from imagefactory.publish.catalog import Catalog, Event, Pointer, Published, pointed_at
from imagefactory.publish.staging import Staged
from imagefactory.publish.standing import Gate, being_pruned
from imagefactory.publish.stored_catalog import Snapshot, race_lost, read_catalog, write_catalog
from imagefactory.publish.tag_owners import moving_tags
from imagefactory.publish.tags import CATALOG, Tags
from imagefactory.store.digests import Digest, digest_of


@dataclass(frozen=True)
class Ready:
    """An image that may get its tags."""

    staged: Staged
    image: Published
    tags: Tags
    answers: str
    """What is known about its answers."""


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


def write(gate: Gate, ready: Sequence[Ready]) -> list[Promoted]:
    """Record the promotions in the catalog, then set the tags; nothing is read again unless somebody else wrote."""
    if not ready:
        return []
    manifests = Manifests(gate.repository)
    matrix, moment = gate.project.matrix, gate.time
    # Preferred versions first: of two that were never published, the other one would have the short tags for no time.
    promotions = {uuid.uuid4().hex: candidate for candidate in sorted(ready, key=partial(_comes_later, matrix))}

    def change(catalog: Catalog) -> Catalog:
        for identity, candidate in promotions.items():
            refuse_deleting(catalog, candidate.image)
            manifests[candidate.image.digest] = candidate.staged.manifest
            dated = [tag for tag in candidate.tags.dated if catalog.owners.get(tag) in (None, candidate.image.digest)]
            # One before it may have taken the short tags.
            moving = moving_tags(matrix, catalog, candidate.image.cell)
            event = Event(
                id=identity,
                kind="promote",
                time=moment,
                image=candidate.image.digest,
                named=(candidate.tags.fixed, *dated),
                moved=pointers(matrix, manifests, catalog, candidate.image, moving),
                answers=candidate.answers,
            )
            catalog = catalog.with_event(event, candidate.image)
        return catalog

    moving = {tag for candidate in ready for tag in candidate.tags.moving}
    link = gate.project.matrix.source_annotation
    written = write_catalog(
        gate.repository, change, seen=gate.snapshot, tags=moving, events=promotions, annotations=link
    )
    recorded = [event for event in written.catalog.events if event.id in promotions]
    for event in recorded:
        for tag in event.named:
            manifests.put(event.image, tag)
    set_tags(gate.repository, manifests, written, [tag for event in recorded for tag in event.moved], promotions)
    return [Promoted(promotions[event.id].image, event.named, tuple(event.moved)) for event in recorded]


def _comes_later(matrix: Matrix, candidate: Ready) -> bool:
    cell = candidate.image.cell
    return cell.version != preferred_version(matrix, cell.model, cell.arch)


class Manifests(dict[Digest, StoredManifest]):
    """The documents that tags point at: images from the registry, each asked for once, and indexes made here."""

    def __init__(self, repository: Repository) -> None:
        super().__init__()
        self._repository = repository

    def __missing__(self, digest: Digest) -> StoredManifest:
        return self.setdefault(digest, self._repository.require_manifest(digest))

    def create_index(self, images: Mapping[str, Digest], image: Published, annotations: Mapping[str, str]) -> Digest:
        """Upload an index of images by platform, with annotations beside those of an image; the catalog names it."""
        entries: list[Descriptor] = []
        for platform, digest in images.items():
            system, _, machine = platform.partition("/")
            described = {"architecture": machine, "os": system}
            entries.append(replace(self[digest].descriptor(), platform=described))
        # GHCR shows a description, a source and licences of an index only when they are annotations of the index.
        body = index_document(entries, {**self[image.digest].document().get("annotations", {}), **annotations})
        index = StoredManifest(digest_of(body), INDEX_TYPE, body)
        if index.digest not in self:
            self._repository.put_manifest(body, INDEX_TYPE)
            self[index.digest] = index
        return index.digest

    def put(self, digest: Digest, tag: str) -> None:
        manifest = self[digest]
        self._repository.put_manifest(manifest.body, manifest.media_type, tag)


def pointers(
    matrix: Matrix, manifests: Manifests, catalog: Catalog, image: Published, tags: Iterable[str]
) -> dict[str, Pointer]:
    """Return what each tag must point at to name an image: an index, if the arch has several platforms."""
    arch = matrix.archs.get(image.arch)
    platforms = arch.platforms if arch else [image.platform]
    targets: dict[str, Pointer] = {}
    for tag in tags:
        images = pointed_at(image, catalog.pointer(tag), catalog.known, platforms)
        if len(platforms) == 1:
            digest = image.digest
        else:
            digest = manifests.create_index(images, image, matrix.source_annotation)
        targets[tag] = Pointer(digest=digest, images=images)
    return targets


def set_tags(
    repository: Repository, manifests: Manifests, written: Snapshot, tags: Iterable[str], events: Collection[str]
) -> None:
    """Point tags where the catalog says until both agree: another promotion may run at the same time."""
    placed = dict.fromkeys(tags, "")
    latest = written
    while True:
        for tag, digest in placed.items():
            pointer = latest.catalog.pointer(tag)
            if pointer is not None and digest != pointer.digest:
                manifests.put(pointer.digest, tag)
                placed[tag] = pointer.digest
        if repository.resolve(CATALOG) == latest.digest:
            return
        latest = read_catalog(repository)
        if not latest.catalog.has_events(events):
            why = "The registry delayed a write for longer than two writers need to take turns."
            fix = "Run the command again. Until then, every tag names a complete and tested image."
            raise race_lost(repository, "Somebody else overwrote the catalog.", why, fix)


def refuse_deleting(catalog: Catalog, image: Published) -> None:
    """Raise if a prune is deleting an image at this moment, or was interrupted while it did."""
    if image.digest in catalog.deleting:
        raise being_pruned(image.tag, image.digest)
