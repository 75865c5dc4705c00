"""Everything that the checkout knows about its images before any page is made: plans, digests, layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from imagefactory.errors import FactoryError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell, Exclusion, buildable, exclusions, intended_kernels
from imagefactory.mods.choose import choose_mods
from imagefactory.oci.image import Image
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.plan.serve.served import Served, describe
from imagefactory.publish.catalog import Published
from imagefactory.publish.tags import moving_tags
from imagefactory.site.registry_records import Evidence, RegistryRecords
from imagefactory.store.digests import Digest


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
        """The digest of the image, if it is known."""
        return self.image.digest if self.image else None

    def pull_beside(self, other: Planned) -> int:
        """Return the bytes to pull onto a machine that has the other image."""
        present = other.sizes
        return sum(size for digest, size in self.sizes.items() if digest not in present)


@dataclass(frozen=True)
class Stock:
    """All cells of the matrix: those with a plan, and why others have none."""

    project: Project
    records: RegistryRecords
    planned: Mapping[Cell, Planned]
    missing: Mapping[Cell, str]

    def published(self, cell: Cell) -> Published | None:
        """Return the image that users of a cell's tags get today."""
        return self.records.catalog.current(moving_tags(self.project.matrix, cell), cell.platform)

    def evidence(self, cell: Cell) -> Evidence:
        """Return what is attached to the image that users of a cell get."""
        image = self.published(cell)
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
