"""Rolling back: point moving tags at an image that was published earlier. Only manifests are written."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from imagefactory.errors.publishing import NeverPublishedError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.catalog import Catalog, Event, Published, now
from imagefactory.publish.catalog_writes import read_catalog, write_catalog
from imagefactory.publish.promote import Manifests, pointer, set_tags
from imagefactory.publish.tags import moving_tags

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


def rollback(
    project: Project, repository: Repository, cell: Cell, to: str = "", *, moment: datetime | None = None
) -> RolledBack:
    """Point a cell's moving tags at its previous image, or at one named by digest or date."""
    own = moving_tags(project.matrix, cell)
    snapshot = read_catalog(repository)
    image = choose(snapshot.catalog, own, cell, to)
    left = snapshot.catalog.current(own, cell.platform)
    # An image of another version may be what `MODEL` goes back to; `MODEL-vVLLM` never becomes that.
    moved = [tag for tag in own if tag in snapshot.catalog.tags_of(image.digest)]
    manifests = Manifests(repository)
    manifests.get(image.digest)  # fails with a remedy when it is not there any more
    identity = uuid.uuid4().hex

    def change(catalog: Catalog) -> Catalog:
        event = Event(
            id=identity,
            kind="rollback",
            time=moment or now(),
            image=image.digest,
            moved={
                tag: pointer(project.matrix, manifests, catalog, image, catalog.pointer(tag)) for tag in moved
            },
            left=left.digest if left and left.digest != image.digest else None,
        )
        return catalog.with_event(event)

    written = write_catalog(repository, change, tags=moved, own=[identity])
    set_tags(repository, manifests, written, moved, [identity])
    return RolledBack(image, left, tuple(moved), tuple(tag for tag in own if tag not in moved))


def choose(catalog: Catalog, tags: Sequence[str], cell: Cell, to: str = "") -> Published:
    """Find the image to go back to, among those that were promoted to any of the tags."""
    promotions = catalog.promotions(tags, cell.platform)
    if not promotions:
        raise NeverPublishedError(
            f"{cell} was never published.",
            where=f"the tags {', '.join(tags)}",
            why=f"The catalog has no image of it for {cell.platform}.",
            fix="`invoke history --target ...` lists what was published; `invoke publish` publishes.",
        )
    if not to:
        return _previous(catalog, promotions, tags, cell)
    if _DATE.fullmatch(to):
        return _on(catalog, promotions, _day(to), cell)
    if _DIGEST.fullmatch(to):
        return _named(catalog, promotions, to.removeprefix("sha256:"), cell)
    raise NeverPublishedError(
        f"{to!r} is neither a digest nor a date.",
        where="the --to option",
        why="It is neither a digest (or the beginning of one) nor a date.",
        fix="Write a digest of `invoke history`, or a date such as 2026-11-05.",
    )


def _previous(catalog: Catalog, promotions: Sequence[Event], tags: Sequence[str], cell: Cell) -> Published:
    current = catalog.current(tags, cell.platform)
    last = max(
        (n for n, event in enumerate(promotions) if current and event.image == current.digest), default=-1
    )
    earlier = [event for event in promotions[: max(last, 0)] if current and event.image != current.digest]
    if not earlier:
        raise NeverPublishedError(
            f"There is no earlier image of {cell} to go back to.",
            where=f"the tags {', '.join(tags)}",
            why=f"{current.digest if current else 'What they name now'} is the first that was published.",
            fix="`invoke history` lists what was published; --to names any of it.",
        )
    return _image(catalog, earlier[-1])


def _on(catalog: Catalog, promotions: Sequence[Event], day: date, cell: Cell) -> Published:
    until = [event for event in promotions if event.time.date() <= day]
    if not until:
        raise NeverPublishedError(
            f"Nothing of {cell} was published by {day}.",
            where="the --to option",
            why=f"The first image is of {promotions[0].time:%Y-%m-%d} (UTC).",
            fix="Name a later day.",
        )
    return _image(catalog, until[-1])


def _named(catalog: Catalog, promotions: Sequence[Event], digits: str, cell: Cell) -> Published:
    found = {event.image for event in promotions if event.image.removeprefix("sha256:").startswith(digits)}
    if len(found) != 1:
        raise NeverPublishedError(
            f"{'Several images begin' if found else 'No image begins'} with {digits!r}.",
            where="the --to option",
            why=f"Only images that {cell}'s tags have named can be gone back to.",
            fix="Write a digest of `invoke history`, with more digits if need be.",
        )
    [digest] = found
    return next(image for image in catalog.images if image.digest == digest)


def _image(catalog: Catalog, event: Event) -> Published:
    # An image leaves the catalog together with its events.
    return next(image for image in catalog.images if image.digest == event.image)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise NeverPublishedError(
            f"{text!r} is not a day.",
            where="the --to option",
            why="There is no such day in the calendar.",
            fix="Write a date such as 2026-11-05.",
        ) from None
