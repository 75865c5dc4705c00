"""Rollback: points moving tags at an image that was published earlier, and writes nothing but manifests."""

import re
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date

from imagefactory.errors import UsageError
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.publish.catalog import Catalog, Event, Published, now
from imagefactory.publish.history import misplaced_tags
from imagefactory.publish.stored_catalog import read_catalog, write_catalog
from imagefactory.publish.tag_owners import moving_tags
from imagefactory.publish.write import Manifests, pointers, refuse_deleting, set_tags
from imagefactory.store.digests import Digest

_DIGEST = re.compile(r"(sha256:)?[0-9a-f]{6,64}")


@dataclass(frozen=True)
class RolledBack:
    """What users get after a rollback, and what they got before."""

    image: Published
    left: Published | None
    moved: tuple[str, ...]
    kept: tuple[str, ...]
    """Tags of the target that stay: the image was never published under them."""


def rollback(project: Project, repository: Repository, cell: Cell, to: str = "", why: str = "") -> RolledBack:
    """Point a cell's moving tags at its previous image, or at one named by digest or date, and keep the reason."""
    snapshot = read_catalog(repository)
    catalog = snapshot.catalog
    cell_tags = moving_tags(project.matrix, catalog, cell)
    manifests = Manifests(repository)
    unfinished = None if to else _unfinished(repository, catalog, cell_tags, cell)
    if unfinished is not None:
        set_tags(repository, manifests, snapshot, unfinished.moved, ())
        left = catalog.image(unfinished.left) if unfinished.left else None
        return _rolled_back(catalog.known[unfinished.image], left, cell_tags, unfinished.moved)
    image = choose(catalog, cell_tags, cell, to)
    # `MODEL` may go back to an image of another vLLM version; `MODEL-vVLLM` may not.
    had = catalog.tags_of(image.digest)
    moved = [tag for tag in cell_tags if tag in had]
    manifests[image.digest]  # raises if the registry no longer has it
    time = now()
    # One event for each image that is left: it is held back from the tags that it had.
    events = {uuid.uuid4().hex: departure for departure in _leaving(catalog, image, moved).items()}

    def change(catalog: Catalog) -> Catalog:
        refuse_deleting(catalog, image)
        for identity, (left, tags) in events.items():
            event = Event(
                id=identity,
                kind="rollback",
                time=time,
                image=image.digest,
                moved=pointers(project.matrix, manifests, catalog, image, tags),
                left=left,
                why=why,
            )
            catalog = catalog.with_event(event)
        return catalog

    link = project.matrix.source_annotation
    written = write_catalog(repository, change, seen=snapshot, tags=moved, events=events, annotations=link)
    set_tags(repository, manifests, written, moved, events)
    return _rolled_back(image, catalog.current(moved, cell.platform), cell_tags, moved)


def _rolled_back(
    image: Published, left: Published | None, cell_tags: Iterable[str], moved: Iterable[str]
) -> RolledBack:
    return RolledBack(image, left, tuple(moved), tuple(tag for tag in cell_tags if tag not in moved))


def _unfinished(repository: Repository, catalog: Catalog, tags: Sequence[str], cell: Cell) -> Event | None:
    """Return the rollback that was last, if it was interrupted before it moved all tags: it goes first."""
    last = next(reversed(catalog.moves(tags)), None)
    image = catalog.image(last.image) if last and last.kind == "rollback" else None
    if last is None or image is None or image.platform != cell.platform:
        return None
    named = {tag: repository.resolve(tag) for tag in last.moved}
    return last if misplaced_tags(named, catalog, last.moved) else None


def _leaving(catalog: Catalog, image: Published, tags: Iterable[str]) -> dict[Digest | None, list[str]]:
    tags_by_image: dict[Digest | None, list[str]] = {}
    for tag in tags:
        pointer = catalog.pointer(tag)
        left = pointer.images.get(image.platform) if pointer else None
        tags_by_image.setdefault(None if left == image.digest else left, []).append(tag)
    return tags_by_image


def choose(catalog: Catalog, tags: Sequence[str], cell: Cell, to: str = "") -> Published:
    """Find the image to go back to, of those promoted to any of the tags; what was rolled back only by its digest."""
    promotions = [
        event
        for event in catalog.moves(tags)
        if event.kind == "promote"
        if (image := catalog.image(event.image)) and image.platform == cell.platform
    ]
    images = [event.image for event in promotions]
    held_back = catalog.holds(tags)
    if not images:
        candidates, why = [], f"{cell} was never published for {cell.platform}"
    elif not to:
        current = catalog.current(tags, cell.platform)
        now = current.digest if current else None
        last = max((number for number, digest in enumerate(images) if digest == now), default=0)
        candidates = [digest for digest in images[:last] if digest not in held_back and digest != now][-1:]
        why = "the image that the tags name now was the first, or all before it were rolled back too"
    elif _DIGEST.fullmatch(to):
        digits = to.removeprefix("sha256:")
        candidates = list({image for image in images if image.removeprefix("sha256:").startswith(digits)})
        why = f"{'several images begin' if candidates else 'no image begins'} with {digits!r}"
    elif (day := day_of(to)) is not None:
        until = [event.image for event in promotions if event.time.date() <= day]
        candidates = [digest for digest in until if digest not in held_back][-1:]
        why = f"the first image is of {promotions[0].time:%Y-%m-%d} (UTC); what was rolled back does not count"
    else:
        candidates, why = [], f"{to!r} is neither a digest (or the start of one) nor a day such as 2026-11-05"
    if len(candidates) != 1:
        raise UsageError(
            "never-published",
            f"There is no such image of {cell} to go back to: {why}.",
            where="the --to option" if to else f"the tags {', '.join(tags)}",
            why="A rollback needs exactly one image that these tags have named.",
            fix="`./inv history` lists what was published; --to accepts the digest of any of it, or a day.",
        )
    return catalog.known[candidates[0]]


def day_of(text: str) -> date | None:
    with suppress(ValueError):
        return date.fromisoformat(text)
    return None
