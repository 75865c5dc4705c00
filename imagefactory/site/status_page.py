"""Describes the last nights: what was published, what waits, what is held back, what could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from imagefactory.publish.catalog import Published
from imagefactory.publish.history import changes, current_images
from imagefactory.site.stock import Document, Stock

NIGHTS: Final = 14


def status_page(stock: Stock, images: Sequence[Document], problems: Sequence[str]) -> Document:
    catalog = stock.records.catalog
    known = {page["slug"] for page in images}
    days: dict[str, list[Document]] = {}
    for change in reversed(list(_changes(stock, known))):
        days.setdefault(change["time"][:10], []).append(change)
    return {
        "registry": stock.records.registry,
        "asked": stock.records.asked,
        "nights": [{"date": day, "changes": changes} for day, changes in days.items()],
        "tags": [
            {
                "tag": found.tag,
                "platform": found.image.platform,
                "digest": found.image.digest,
                "since": f"{found.since:%Y-%m-%d}",
                "slug": _slug(found.image, known),
            }
            for found in current_images(catalog)
        ],
        "waiting": [page["slug"] for page in images if page["state"] == "update waiting"],
        "held": [
            f"{digest}: rolled back on {event.time:%Y-%m-%d}"
            for digest, event in sorted(catalog.holds(catalog.moving_tags()).items())
        ],
        "problems": [
            *problems,
            *(f"{page['target']}: {problem}" for page in images for problem in page["problems"]),
        ],
    }


def _changes(stock: Stock, known: set[str]) -> Iterator[Document]:
    """Yield what changed in the last nights, oldest first."""
    before: dict[tuple[str, str, str], Published] = {}
    catalog = stock.records.catalog
    nights = sorted({event.time.date() for event in catalog.events})[-NIGHTS:]
    for event in catalog.events:
        image = catalog.image(event.image)
        if image is None:
            continue
        key = (image.model, image.arch, image.platform)
        if event.time.date() in nights:
            yield {
                "time": f"{event.time:%Y-%m-%dT%H:%M:%SZ}",
                "kind": event.kind,
                "target": str(image.cell),
                "slug": _slug(image, known),
                "digest": image.digest,
                "tags": sorted({*event.named, *event.moved}),
                "changed": changes(before.get(key), image),
                "left": event.left,
            }
        before[key] = image


def _slug(image: Published, known: set[str]) -> str | None:
    return image.cell.slug if image.cell.slug in known else None
