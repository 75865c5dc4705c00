"""Everything that the checkout knows about its images before any page is made: plans, digests, layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from imagefactory.errors import FactoryError
from imagefactory.mods.choose import choose_mods
from imagefactory.oci.image import Image
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.plan.serve.description import Served, describe
from imagefactory.project.cells import Cell, Exclusion, buildable, exclusions, intended_kernels
from imagefactory.project.locks.files import LockedDeb, LockedWheel
from imagefactory.project.project import Project
from imagefactory.publish.attest.components import Component, components_of, summarise_parts
from imagefactory.publish.catalog import Published
from imagefactory.publish.tags import moving_tags
from imagefactory.site.registry_records import Evidence, RegistryRecords
from imagefactory.store.digests import Digest

Document = dict[str, Any]
"""What a page shows, which is also the JSON beside it."""


@dataclass(frozen=True)
class Planned:
    """A cell with its plan; the image is None while a layer has never been built."""

    cell: Cell
    plan: Plan
    image: Image | None

    @property
    def sizes(self) -> dict[Digest, int]:
        """The layers by digest, with the bytes to pull; empty without an image."""
        return {blob.digest: blob.size for blob in self.image.layers} if self.image else {}

    @cached_property
    def digest(self) -> Digest | None:
        return self.image.digest if self.image else None


@dataclass(frozen=True)
class Stock:
    """All cells of the matrix: those with a plan, and why others have none."""

    project: Project
    records: RegistryRecords
    planned: Mapping[Cell, Planned]
    missing: Mapping[Cell, str]

    @cached_property
    def published(self) -> dict[Cell, Published | None]:
        """The images that users of the cells' tags get today."""
        matrix, current = self.project.matrix, self.records.catalog.current
        return {cell: current(moving_tags(matrix, cell), cell.platform) for cell in self.planned}

    def evidence(self, cell: Cell) -> Evidence:
        """Return what is attached to the image that users of a cell get."""
        image = self.published[cell]
        return self.records.evidence.get(image.digest, Evidence()) if image else Evidence()

    @cached_property
    def excluded(self) -> list[Exclusion]:
        """The combinations that no image is made of, each with the reason."""
        return exclusions(self.project.matrix)

    def served(self, cell: Cell) -> Served:
        """Return how a cell starts; this needs no lock."""
        matrix, chosen = self.project.matrix, choose_mods(self.project.matrix, cell, self.project.mods)
        return describe(matrix, cell, self.project.model_lock, chosen, intended_kernels(matrix, cell))


def take_stock(project: Project, records: RegistryRecords) -> Stock:
    """Plan every cell that is locked; a cell that cannot be planned is listed with the reason."""
    known = KnownLayers(project.known_layers)
    planned: dict[Cell, Planned] = {}
    missing: dict[Cell, str] = {}
    for cell in buildable(project.matrix):
        if not project.is_locked(cell):
            missing[cell] = "not locked"
            continue
        try:
            plan = make_plan(project, cell)
        except FactoryError as error:
            missing[cell] = f"{error.what} {error.why}"
            continue
        planned[cell] = Planned(cell, plan, known.image(plan))
    return Stock(project, records, planned, missing)


NOT_RECORDED: Final = "not on record"


def package_lists(stock: Stock) -> dict[str, Document]:
    """Return the packages of all images with the same locks, by the slug of their page."""
    found: dict[str, list[Planned]] = {}
    for planned in stock.planned.values():
        found.setdefault(packages_slug(planned), []).append(planned)
    return {slug: _list(stock, slug, images) for slug, images in found.items()}


def packages_slug(planned: Planned) -> str:
    """Return the name of the page with the packages of an image."""
    cell = planned.cell
    return f"{cell.server}-{cell.version.removeprefix(f'{cell.server}-')}-{cell.arch}-{cell.machine}"


def _list(stock: Stock, slug: str, images: list[Planned]) -> Document:
    """List packages with their licences; `gnu` are those with a GNU licence, with how it applies."""
    cell, plan, gnu, problem = images[0].cell, images[0].plan, [], ""
    try:
        found = components_of(stock.project, plan)
        parts = [part for part in found if part.kind in {"wheel", "deb", "source"}]
    except FactoryError as error:  # a licence is not on record
        problem = f"licences of {slug}: {error.what} {error.why}"
        rows = [_row("deb", one, NOT_RECORDED) for one in stock.project.base_lock(cell).debs]
        rows += [_row("wheel", one, NOT_RECORDED) for one in stock.project.wheel_lock(cell).wheels]
        licences = {NOT_RECORDED: len(rows)}
    else:
        summary = summarise_parts(plan.target, parts)
        rows = [_row(part.kind, part, part.licence or "not declared") for part in parts]
        licences = summary.counts
        gnu = [f"{part.name}: {', '.join(part.licences)} ({part.how})" for part in summary.gnu]
    return {
        "slug": slug,
        "title": f"{cell.runs} on {cell.arch}, {cell.platform}",
        "packages": rows,
        "licences": licences,
        "gnu": gnu,
        "images": [planned.cell.slug for planned in images],
        "problem": problem,
    }


def _row(kind: str, part: Component | LockedDeb | LockedWheel, licence: str) -> Document:
    return {
        "kind": kind,
        "name": part.name,
        "version": part.version,
        "licence": licence,
        "bytes": part.size or 0,
        "sha256": part.sha256 or "",
    }
