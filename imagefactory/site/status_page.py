"""Describes the last nights: what was published, what waits, what is held back, what could not be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from imagefactory.publish.catalog import Published
from imagefactory.publish.history import changes, current_images
from imagefactory.site.image_page import ImagePage
from imagefactory.site.stock import Stock

NIGHTS: Final = 14


@dataclass(frozen=True)
class Change:
    """A change of tags."""

    time: str
    """In UTC, with seconds."""
    kind: str
    target: str
    slug: str | None
    digest: str
    tags: tuple[str, ...]
    changed: tuple[str, ...]
    left: str | None


@dataclass(frozen=True)
class PublishedNight:
    """The changes of a day, newest first."""

    date: str
    changes: tuple[Change, ...]

    @property
    def promoted(self) -> int:
        """How many images were published."""
        return sum(change.kind == "promote" for change in self.changes)

    @property
    def rolled_back(self) -> int:
        """How many rollbacks there were."""
        return len(self.changes) - self.promoted


@dataclass(frozen=True)
class CurrentTag:
    """A moving tag, and the image that it names."""

    tag: str
    platform: str
    digest: str
    since: str
    slug: str | None


@dataclass(frozen=True)
class StatusPage:
    """The state of the factory."""

    registry: str
    asked: bool
    nights: tuple[PublishedNight, ...]
    tags: tuple[CurrentTag, ...]
    waiting: tuple[str, ...]
    """Images whose plan is newer than what is published, by slug."""
    held: tuple[str, ...]
    problems: tuple[str, ...]


def status_page(stock: Stock, images: list[ImagePage], problems: list[str]) -> StatusPage:
    """Describe the state of the factory, from the catalog."""
    catalog = stock.records.catalog
    known = {page.slug for page in images}
    days: dict[str, list[Change]] = {}
    for change in _changes(stock, known):
        days.setdefault(change.time[:10], []).append(change)
    nights = tuple(
        PublishedNight(day, tuple(reversed(days[day]))) for day in sorted(days, reverse=True)[:NIGHTS]
    )
    tags = tuple(
        CurrentTag(
            tag=found.tag,
            platform=found.image.platform,
            digest=found.image.digest,
            since=f"{found.since:%Y-%m-%d}",
            slug=_slug(found.image, known),
        )
        for found in current_images(catalog)
    )
    held = tuple(
        f"{digest}: rolled back on {event.time:%Y-%m-%d}"
        for digest, event in sorted(catalog.holds(catalog.moving_tags()).items())
    )
    found = [f"{page.target}: {problem}" for page in images for problem in page.problems]
    return StatusPage(
        registry=stock.records.registry,
        asked=stock.records.asked,
        nights=nights,
        tags=tags,
        waiting=tuple(page.slug for page in images if page.state == "update waiting"),
        held=held,
        problems=(*problems, *found),
    )


def _changes(stock: Stock, known: set[str]) -> Iterator[Change]:
    before: dict[tuple[str, str, str], Published] = {}
    catalog = stock.records.catalog
    for event in catalog.events:
        image = catalog.image(event.image)
        if image is None:
            continue
        key = (image.model, image.arch, image.platform)
        yield Change(
            time=f"{event.time:%Y-%m-%dT%H:%M:%SZ}",
            kind=event.kind,
            target=str(image.cell),
            slug=_slug(image, known),
            digest=image.digest,
            tags=tuple(sorted({*event.named, *event.moved})),
            changed=changes(before.get(key), image),
            left=event.left,
        )
        before[key] = image


def _slug(image: Published, known: set[str]) -> str | None:
    slug = image.cell.slug
    return slug if slug in known else None
