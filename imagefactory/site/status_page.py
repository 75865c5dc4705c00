"""Describes what happened to published images: nights, tags, upgrades, known vulnerabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from imagefactory.check.bench.result import BenchResult
from imagefactory.project.cells import Cell
from imagefactory.publish.catalog import Published
from imagefactory.publish.history import changes, current_images, steps
from imagefactory.publish.image_contents import Contents, contents_of_plan
from imagefactory.publish.owned_image import newest_for, newest_version
from imagefactory.publish.upgrade import Known, compare_contents, lines
from imagefactory.publish.vulnerabilities import SEVERITIES, Vulnerability
from imagefactory.site.image_page import ImagePage
from imagefactory.site.stock import Stock
from imagefactory.store.digests import Digest

NIGHTS: Final = 14


@dataclass(frozen=True)
class NightChange:
    """An image that tags were moved to; `slug` is None if it is no longer in the matrix."""

    time: str
    kind: str
    target: str
    slug: str | None
    digest: str
    tags: tuple[str, ...]
    changed: tuple[str, ...]
    notes: tuple[str, ...]
    left: str | None


@dataclass(frozen=True)
class Night:
    """A night that changed something."""

    date: str
    changes: tuple[NightChange, ...]


@dataclass(frozen=True)
class TagToday:
    """A tag, and the image that it names today."""

    tag: str
    platform: str
    digest: str
    since: str
    slug: str | None


@dataclass(frozen=True)
class Status:
    """What was published, what waits, and what could not be read."""

    registry: str
    asked: bool
    nights: tuple[Night, ...]
    tags: tuple[TagToday, ...]
    waiting: tuple[str, ...]
    held: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Upgrade:
    """What changes for the owner of an image."""

    digest: str
    id: str
    """What Docker calls the image that this checkout makes; empty for others."""
    target: str
    slug: str | None
    names: tuple[str, ...]
    newest: str
    state: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class KnownVulnerability:
    """A vulnerability with the packages that have it, each with the versions that mend it, and the images."""

    id: str
    aliases: tuple[str, ...]
    severity: str
    packages: Mapping[str, tuple[str, ...]]
    images: tuple[str, ...]


def status_page(stock: Stock, images: Sequence[ImagePage], upgrades: Upgrades, problems: Sequence[str]) -> Status:
    """Describe the state of what was published."""
    catalog = stock.records.catalog
    slugs = {image.slug for image in images}
    days: dict[str, list[NightChange]] = {}
    for change in reversed(list(_changes(upgrades, slugs))):
        days.setdefault(change.time[:10], []).append(change)  # by the date of its ISO time
    return Status(
        registry=stock.records.registry,
        asked=stock.records.asked,
        nights=tuple(Night(day, tuple(of_day)) for day, of_day in days.items()),
        tags=tuple(
            TagToday(
                tag=current.tag,
                platform=current.image.platform,
                digest=current.image.digest,
                since=f"{current.since:%Y-%m-%d}",
                slug=_slug(current.image, slugs),
            )
            for current in current_images(catalog)
        ),
        waiting=tuple(image.slug for image in images if image.state == "update waiting"),
        held=tuple(
            f"{digest}: rolled back on {event.time:%Y-%m-%d}"
            for digest, event in sorted(catalog.holds(catalog.moving_tags()).items())
        ),
        problems=(*problems, *(f"{image.target}: {problem}" for image in images for problem in image.problems)),
    )


def _changes(upgrades: Upgrades, slugs: set[str]) -> Iterator[NightChange]:
    """Yield what changed in the last nights, oldest first."""
    catalog = upgrades.stock.records.catalog
    nights = sorted({event.time.date() for event in catalog.events})[-NIGHTS:]
    for event, image, before in steps(catalog):
        if event.time.date() in nights:
            yield NightChange(
                time=f"{event.time:%Y-%m-%dT%H:%M:%SZ}",
                kind=event.kind,
                target=str(image.cell),
                slug=_slug(image, slugs),
                digest=image.digest,
                tags=tuple(sorted({*event.named, *event.moved})),
                changed=tuple(changes(before, image)),
                notes=upgrades.lines(before.digest, image.digest) if before else (),
                left=event.left,
            )


def _slug(image: Published, slugs: set[str]) -> str | None:
    return image.cell.slug if image.cell.slug in slugs else None


def vulnerabilities_page(images: Sequence[ImagePage]) -> tuple[KnownVulnerability, ...]:
    """List every known vulnerability of today's images, the worst first."""
    by_id: dict[str, list[tuple[Vulnerability, str]]] = {}
    for image in images:
        for entry in image.vulnerabilities.found if image.vulnerabilities else ():
            by_id.setdefault(entry.id, []).append((entry, image.slug))
    rows = [
        KnownVulnerability(
            id=name,
            aliases=entries[0][0].aliases,
            severity=entries[0][0].severity,
            packages={f"{entry.package.partition(' ')[2]} {entry.version}": entry.fixed_in for entry, _ in entries},
            images=tuple(dict.fromkeys(slug for _, slug in entries)),
        )
        for name, entries in by_id.items()
    ]
    return tuple(sorted(rows, key=lambda row: (SEVERITIES.index(row.severity), row.id)))


@dataclass(frozen=True)
class Upgrades:
    """Everything that is needed to compare any two images of the site."""

    stock: Stock
    known: Known
    contents: Mapping[Digest, Contents | str]
    """What is in each image, or why that is not known."""

    @cached_property
    def ids(self) -> dict[Digest, Digest]:
        images = (entry.image for entry in self.stock.planned.values() if entry.image)
        return {image.digest: image.config_digest for image in images}

    @classmethod
    def of(cls, stock: Stock, results: Sequence[BenchResult]) -> Upgrades:
        project, catalog = stock.project, stock.records.catalog
        planned = {
            entry.digest: contents_of_plan(project, entry.plan, entry.image)
            for entry in stock.planned.values()
            if entry.digest
        }
        # What cannot be read may be planned here.
        read = {
            digest: contents
            for digest, contents in stock.records.contents.items()
            if digest not in planned or isinstance(contents, Contents)
        }
        return cls(stock, Known.of(project, catalog, results), planned | read)

    def lines(self, before: Digest, after: Digest) -> tuple[str, ...]:
        """Tell what changes between two images, in lines of Markdown."""
        too_old = "It is older than those that this site describes."
        old, new = self.contents.get(before, too_old), self.contents.get(after, too_old)
        if isinstance(old, str) or isinstance(new, str):
            unknown = old if isinstance(old, str) else new
            return (f"What changes is not known: {unknown} `./inv upgrade --from {before}` may tell.",)
        return tuple(lines(compare_contents(old, new, self.known)))

    def rows(self) -> Iterator[Upgrade]:
        """Yield published images, the newest first, then those that this checkout makes and nobody published."""
        catalog = self.stock.records.catalog
        published = {image.digest for image in catalog.images}
        for image in reversed(catalog.images):
            if image.digest in self.contents:
                days = dict.fromkeys(f"{event.time:%Y-%m-%d}" for event in catalog.events_of.get(image.digest, ()))
                names = (image.tag, *sorted(catalog.tags_of(image.digest)), *days)
                yield self._row(image.cell, image.digest, newest_for(catalog, image).digest, names)
        matrix = self.stock.project.matrix
        # The matrix has the oldest version first.
        for cell, planned in reversed(list(self.stock.planned.items())):
            if planned.digest and planned.digest not in published:
                # Whoever built it here would build this today.
                newer = self.stock.planned.get(replace(cell, version=newest_version(matrix, cell)), planned)
                # Who pulls by a tag that was published gets another image.
                tags = () if self.stock.published[cell] else self.stock.tags_of(cell)
                yield self._row(cell, planned.digest, newer.digest or planned.digest, tags)

    def _row(self, cell: Cell, digest: Digest, newest: Digest, names: tuple[str, ...]) -> Upgrade:
        rolled_back = digest in self.known.held
        state = "rollback" if rolled_back else "current" if newest == digest else "update waiting"
        slug = cell.slug if cell in self.stock.planned else None
        return Upgrade(
            digest, self.ids.get(digest, ""), str(cell), slug, names, newest, state, self.lines(digest, newest)
        )
