"""Promotion: gives its tags to an image that passed everything.

The order of writes makes a crash harmless. First the catalog records what is about to happen; then the tag that never
moves is written, then the moving ones, the most specific first. Each tag names a manifest whose content is in the
registry, complete and tested. Running the same promotion again finishes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from textwrap import shorten
from typing import TYPE_CHECKING

from imagefactory.errors import FactoryError, TrustError, clean
from imagefactory.oci.image import INDEX_TYPE
from imagefactory.oci.registry.image_push import index_document
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.plan.plan import Plan
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.publish.answers import LONGEST, pass_answers
from imagefactory.publish.catalog import Catalog, Event, Pointer, Published, now, pointed_at
from imagefactory.publish.gate import pass_gate
from imagefactory.publish.history import misplaced_tags
from imagefactory.publish.staging import Outcomes, Staged
from imagefactory.publish.stored_catalog import Snapshot, race_lost, read_catalog, write_catalog
from imagefactory.publish.tags import CATALOG, Tags, refuse_ambiguous, tags_of
from imagefactory.publish.vulnerabilities import pass_vulnerabilities
from imagefactory.store.digests import Digest, digest_of

if TYPE_CHECKING:
    from imagefactory.publish.attest.signing import Verifier


@dataclass(frozen=True)
class _Ready:
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


def promote(
    project: Project,
    repository: Repository,
    staged: Outcomes[Staged],
    trust: Verifier | None,
    *,
    nightly: bool = False,
    again: bool = False,
    answers_changed: str = "",
    moment: datetime | None = None,
) -> Promotion:
    """Move tags to staged images; one that is refused does not stop the others.

    `trust` says whose signatures count; without it, unsigned images are promoted too. `answers_changed` is why images
    are promoted although their answers changed.
    """
    refuse_ambiguous(project.matrix)
    time = moment or now()
    snapshot = read_catalog(repository)

    def check(staged: Staged) -> _Ready:
        image = pass_gate(project, repository, staged, trust)
        tags = claim_tags(project, repository, snapshot, staged.plan, time.date(), nightly=nightly, again=again)
        # The first image of a day keeps the day's tag.
        free = tuple(tag for tag in tags.dated if repository.resolve(tag) in (None, image.digest))
        owner = snapshot.catalog.owners.get(tags.fixed) or repository.resolve(tags.fixed)
        if owner not in (None, image.digest):
            raise TrustError(
                "tag-taken",
                f"The tag {tags.fixed} belongs to another image, and never moves.",
                where=str(repository.reference.tagged(tags.fixed)),
                why=f"It names {owner}; this image is {image.digest}.",
                fix="The same plan must give the same image: run `./inv verify`. Nothing was written.",
            )
        pass_vulnerabilities(project, repository, staged.plan, staged.digest)
        answers = pass_answers(project, repository, staged, answers_changed)
        told = shorten(clean(answers.line), LONGEST, placeholder=" ...") if answers else ""
        return _Ready(staged, image, replace(tags, dated=free), told.encode("ascii", "replace").decode())

    checked = staged.then(check)
    ready = list(checked.finished.values())
    promoted = _promote(project.matrix, repository, ready, snapshot, time) if ready else []
    return Promotion(promoted, list(checked.failed.values()))


def promotable(project: Project, repository: Repository, *, again: bool) -> Callable[[Plan], Plan]:
    """Make a check for what can be known before an image is built: the catalog, its tags, and rollbacks."""
    refuse_ambiguous(project.matrix)
    snapshot = read_catalog(repository)

    def check(plan: Plan) -> Plan:
        claim_tags(project, repository, snapshot, plan, now().date(), again=again)
        return plan

    return check


def claim_tags(
    project: Project,
    repository: Repository,
    snapshot: Snapshot,
    plan: Plan,
    day: date,
    *,
    again: bool,
    nightly: bool = False,
) -> Tags:
    """Return the tags of a plan's image; raise if one is another's that moves where this one does not, or is held."""
    catalog, tags = snapshot.catalog, tags_of(project.matrix, plan.cell, plan.key, day, nightly=nightly)
    mixed = [tag for tag in tags.moving if catalog.owners.get(tag)]
    mixed += [tag for tag in (tags.fixed, *tags.dated) if catalog.pointer(tag)]
    if mixed:
        raise TrustError(
            "tag-taken",
            f"The tag {mixed[0]} belongs to another image.",
            where=str(repository.reference.tagged(mixed[0])),
            why="One of the two would move it, for the other it must never move.",
            fix="Rename the model in matrix.yaml. Nothing was written.",
        )
    for digest, held in () if again else catalog.holds(tags.moving).items():
        if catalog.made_from(digest, plan.key):
            # The rollback may have been interrupted before it moved them all.
            wrong = misplaced_tags(repository, catalog, tags.moving)
            set_tags(repository, Manifests(repository), snapshot, wrong, ())
            raise TrustError(
                "held-back",
                f"{catalog.known[digest].cell} was rolled back from this very image.",
                where=digest,
                why=f"On {held.time:%Y-%m-%d %H:%M} UTC its tags were set back to {held.image}.",
                fix="Fix what was wrong with the image. If it was right after all, promote it with --again.",
            )
    return tags


def _promote(
    matrix: Matrix, repository: Repository, ready: Sequence[_Ready], seen: Snapshot, moment: datetime
) -> list[Promoted]:
    manifests = Manifests(repository)
    events = {uuid.uuid4().hex: one for one in ready}

    def change(catalog: Catalog) -> Catalog:
        for identity, one in events.items():
            refuse_deleting(catalog, one.image)
            manifests[one.image.digest] = one.staged.manifest
            dated = [tag for tag in one.tags.dated if catalog.owners.get(tag) in (None, one.image.digest)]
            event = Event(
                id=identity,
                kind="promote",
                time=moment,
                image=one.image.digest,
                named=(one.tags.fixed, *dated),
                moved=pointers(matrix, manifests, catalog, one.image, one.tags.moving),
                answers=one.answers,
            )
            catalog = catalog.with_event(event, one.image)
        return catalog

    moving = {tag for one in ready for tag in one.tags.moving}
    written = write_catalog(repository, change, seen=seen, tags=moving, events=events)
    recorded = [event for event in written.catalog.events if event.id in events]
    for event in recorded:
        for tag in event.named:
            manifests.put(event.image, tag)
    set_tags(repository, manifests, written, [tag for event in recorded for tag in event.moved], events)
    return [Promoted(events[event.id].image, event.named, tuple(event.moved)) for event in recorded]


class Manifests(dict[Digest, StoredManifest]):
    """The documents that tags point at: images from the registry, each asked for once, and indexes made here."""

    def __init__(self, repository: Repository) -> None:
        super().__init__()
        self._repository = repository

    def __missing__(self, digest: Digest) -> StoredManifest:
        return self.setdefault(digest, self._repository.require_manifest(digest))

    def create_index(self, images: Mapping[str, Digest], image: Published) -> Digest:
        """Upload an index of images by platform, so that whoever reads the catalog finds it."""
        entries: list[Descriptor] = []
        for platform, digest in images.items():
            system, _, machine = platform.partition("/")
            described = {"architecture": machine, "os": system}
            entries.append(replace(self[digest].descriptor(), platform=described))
        # GHCR shows a description, a source and licences of an index only when they are annotations of the index.
        body = index_document(entries, self[image.digest].document().get("annotations", {}))
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
    found: dict[str, Pointer] = {}
    for tag in tags:
        images = pointed_at(image, catalog.pointer(tag), catalog.known, platforms)
        digest = image.digest if len(platforms) == 1 else manifests.create_index(images, image)
        found[tag] = Pointer(digest=digest, images=images)
    return found


def set_tags(
    repository: Repository, manifests: Manifests, written: Snapshot, tags: Iterable[str], own: Collection[str]
) -> None:
    """Point tags where the catalog says until both agree: another promotion may run at the same time."""
    done = dict.fromkeys(tags, "")
    latest = written
    while True:
        for tag, digest in done.items():
            wanted = latest.catalog.pointer(tag)
            if wanted is not None and digest != wanted.digest:
                manifests.put(wanted.digest, tag)
                done[tag] = wanted.digest
        if repository.resolve(CATALOG) == latest.digest:
            return
        latest = read_catalog(repository)
        if not latest.catalog.has_events(own):
            why = "The registry delayed a write for longer than two writers need to take turns."
            fix = "Run the command again. Until then, every tag names a complete and tested image."
            raise race_lost(repository, "Somebody else overwrote the catalog.", why, fix)


def refuse_deleting(catalog: Catalog, image: Published) -> None:
    """Raise if a prune is deleting an image at this moment, or was interrupted while it did."""
    if image.digest in catalog.deleting:
        raise TrustError(
            "being-pruned",
            f"{image.tag} is being deleted.",
            where=image.digest,
            why="A prune found that nothing needed it, and has not finished.",
            fix="Run `./inv prune --delete` to finish it, then `./inv publish`. No tag was moved.",
        )
