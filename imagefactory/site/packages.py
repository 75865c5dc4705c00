"""The packages of images: images with the same locks share one list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from imagefactory.errors import FactoryError
from imagefactory.publish.attest.components import Component, components_of
from imagefactory.publish.attest.licence_summary import summarise_parts
from imagefactory.site.stock import Planned, Stock

NOT_RECORDED: Final = "not on record"


@dataclass(frozen=True)
class PackageRow:
    """A wheel or a Debian package."""

    kind: str
    name: str
    version: str
    licence: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class PackageList:
    """The packages of all images with the same locks."""

    slug: str
    title: str
    packages: tuple[PackageRow, ...]
    licences: dict[str, int]
    gnu: tuple[str, ...]
    """The parts with a GNU licence, with how it applies."""
    images: tuple[str, ...]
    problem: str = ""
    """Why the licences are unknown; empty if they are known."""


def package_lists(stock: Stock) -> dict[str, PackageList]:
    """Return the lists by the slug of their page."""
    found: dict[str, list[Planned]] = {}
    for planned in stock.planned.values():
        found.setdefault(packages_slug(planned), []).append(planned)
    return {slug: _list(stock, slug, images) for slug, images in found.items()}


def packages_slug(planned: Planned) -> str:
    """Return the name of the page with the packages of an image."""
    cell = planned.cell
    return f"{cell.server}-{cell.version.removeprefix(f'{cell.server}-')}-{cell.arch}-{cell.machine}"


def _list(stock: Stock, slug: str, images: list[Planned]) -> PackageList:
    first = images[0]
    gnu: tuple[str, ...] = ()
    try:
        parts = components_of(stock.project, first.plan)
    except FactoryError as error:  # a licence is not on record
        rows, problem = tuple(_locked(stock, first)), f"licences of {slug}: {error.what} {error.why}"
        licences = {NOT_RECORDED: len(rows)}
    else:
        packages = [part for part in parts if part.kind in {"wheel", "deb", "source"}]
        summary = summarise_parts(first.plan.target, packages)
        rows, problem = tuple(map(_row, packages)), ""
        licences = summary.counts
        gnu = tuple(f"{part.name}: {', '.join(part.licences)} ({part.how})" for part in summary.gnu)
    return PackageList(
        slug=slug,
        title=f"{first.cell.runs} on {first.cell.arch}, {first.cell.platform}",
        packages=rows,
        licences=licences,
        gnu=gnu,
        images=tuple(planned.cell.slug for planned in images),
        problem=problem,
    )


def _row(part: Component) -> PackageRow:
    return PackageRow(
        part.kind, part.name, part.version, part.licence or "not declared", part.size or 0, part.sha256 or ""
    )


def _locked(stock: Stock, planned: Planned) -> Iterator[PackageRow]:
    """Yield the packages as the locks name them, without licences."""
    locks = stock.project.wheel_lock(planned.cell), stock.project.base_lock(planned.cell)
    for kind, packages in (("deb", locks[1].debs), ("wheel", locks[0].wheels)):
        for one in packages:
            yield PackageRow(kind, one.name, one.version, NOT_RECORDED, one.size, one.sha256)
