"""Rollback: points moving tags at an image that was published earlier, and writes nothing but manifests."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from imagefactory.errors import UsageError
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.publish.catalog import Catalog, Event, Published, now, read_catalog, write_catalog
from imagefactory.publish.history import misplaced_tags
from imagefactory.publish.promote import Manifests, pointers, refuse_deleting, set_tags
from imagefactory.publish.tags import moving_tags
from imagefactory.store.digests import Digest

_DIGEST = re.compile(r"(sha256:)?[0-9a-f]{6,64}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class RolledBack:
    """What users get after a rollback, and what they got before."""

    image: Published
    left: Published | None
    moved: tuple[str, ...]
    kept: tuple[str, ...]
    """Tags of the target that stay: the image was never published under them."""


def rollback(project: Project, repository: Repository, cell: Cell, to: str = "") -> RolledBack:
    """Point a cell's moving tags at its previous image, or at one named by digest or date."""
    own = moving_tags(project.matrix, cell)
    snapshot = read_catalog(repository)
    catalog = snapshot.catalog
    manifests = Manifests(repository)
    unfinished = None if to else _unfinished(repository, catalog, own, cell)
    if unfinished is not None:
        set_tags(repository, manifests, snapshot, unfinished.moved, ())
        left = catalog.image(unfinished.left) if unfinished.left else None
        return _rolled_back(_image(catalog, unfinished.image), left, own, unfinished.moved)
    image = choose(catalog, own, cell, to)
    # `MODEL` may go back to an image of another vLLM version; `MODEL-vVLLM` may not.
    moved = [tag for tag in own if tag in catalog.tags_of(image.digest)]
    manifests.get(image.digest)  # raises if the registry no longer has it
    time = now()
    # One event for each image that is left: it is held back from the tags that it had.
    events = {uuid.uuid4().hex: item for item in _leaving(catalog, image, moved).items()}

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
            )
            catalog = catalog.with_event(event)
        return catalog

    written = write_catalog(repository, change, seen=snapshot, tags=moved, own=events)
    set_tags(repository, manifests, written, moved, events)
    return _rolled_back(image, catalog.current(moved, cell.platform), own, moved)


def _rolled_back(
    image: Published, left: Published | None, own: Iterable[str], moved: Iterable[str]
) -> RolledBack:
    return RolledBack(image, left, tuple(moved), tuple(tag for tag in own if tag not in moved))


def _unfinished(repository: Repository, catalog: Catalog, tags: Sequence[str], cell: Cell) -> Event | None:
    """Return the rollback that was last, if it was interrupted before it moved all tags: it goes first."""
    last = next((event for event in reversed(catalog.events) if set(tags) & event.moved.keys()), None)
    if last is None or last.kind != "rollback" or not misplaced_tags(repository, catalog, last.moved):
        return None
    image = catalog.image(last.image)
    return last if image is not None and image.platform == cell.platform else None


def _leaving(catalog: Catalog, image: Published, tags: Iterable[str]) -> dict[Digest | None, list[str]]:
    """Group tags by the image that they leave for another."""
    found: dict[Digest | None, list[str]] = {}
    for tag in tags:
        pointer = catalog.pointer(tag)
        left = pointer.images.get(image.platform) if pointer else None
        found.setdefault(None if left == image.digest else left, []).append(tag)
    return found


def choose(catalog: Catalog, tags: Sequence[str], cell: Cell, to: str = "") -> Published:
    """Find the image to go back to, among those that were promoted to any of the tags.

    An image that was rolled back before is found by its digest only.
    """
    promotions = catalog.promotions(tags, cell.platform)
    if not promotions:
        raise UsageError(
            "never-published",
            f"{cell} was never published.",
            where=f"the tags {', '.join(tags)}",
            why=f"The catalog has no image of it for {cell.platform}.",
            fix="`./inv history --target ...` lists what was published; `./inv publish` publishes.",
        )
    held = catalog.holds(tags)
    if not to:
        return _previous(catalog, promotions, held, tags, cell)
    if _DATE.fullmatch(to):
        return _on(catalog, promotions, held, to, cell)
    if _DIGEST.fullmatch(to):
        return _named(catalog, promotions, to.removeprefix("sha256:"), cell)
    raise _unusable(
        f"{to!r} is neither a digest nor a date.",
        why="It is neither a digest (or the start of one) nor a date.",
        fix="Use a digest of `./inv history`, or a date such as 2026-11-05.",
    )


def _previous(
    catalog: Catalog, promotions: Sequence[Event], held: Collection[Digest], tags: Sequence[str], cell: Cell
) -> Published:
    current = catalog.current(tags, cell.platform)
    images = [event.image for event in promotions]
    earlier: list[Digest] = []
    if current and current.digest in images:
        last = len(images) - 1 - images[::-1].index(current.digest)
        earlier = [digest for digest in images[:last] if digest != current.digest and digest not in held]
    if not earlier:
        raise UsageError(
            "never-published",
            f"There is no earlier image of {cell} to go back to.",
            where=f"the tags {', '.join(tags)}",
            why=f"{current.digest if current else 'The image that they name now'} is the first that was published, or "
            "all before it were rolled back too.",
            fix="`./inv history` lists what was published; --to accepts the digest of any of it.",
        )
    return _image(catalog, earlier[-1])


def _on(
    catalog: Catalog, promotions: Sequence[Event], held: Collection[Digest], text: str, cell: Cell
) -> Published:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise _unusable(
            f"{text!r} is not a day.",
            why="The calendar has no such day.",
            fix="Use a date such as 2026-11-05.",
        ) from None
    until = [event.image for event in promotions if event.time.date() <= day and event.image not in held]
    if not until:
        raise _unusable(
            f"Nothing of {cell} was published by {day}.",
            why=f"The first image is of {promotions[0].time:%Y-%m-%d} (UTC); what was rolled back does not count.",
            fix="Name a later day, or a digest.",
        )
    return _image(catalog, until[-1])


def _named(catalog: Catalog, promotions: Sequence[Event], digits: str, cell: Cell) -> Published:
    found = {event.image for event in promotions if event.image.removeprefix("sha256:").startswith(digits)}
    if len(found) != 1:
        raise _unusable(
            f"{'Several images begin' if found else 'No image begins'} with {digits!r}.",
            why=f"A rollback needs exactly one image that {cell}'s tags have named.",
            fix="Use a digest of `./inv history`, with more digits if need be.",
        )
    return _image(catalog, found.pop())


def _image(catalog: Catalog, digest: Digest) -> Published:
    # An image leaves the catalog together with its events.
    return next(image for image in catalog.images if image.digest == digest)


def _unusable(what: str, *, why: str, fix: str) -> UsageError:
    return UsageError("never-published", what, where="the --to option", why=why, fix=fix)
