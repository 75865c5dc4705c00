"""Everything that is known about images before any page is made: plans, digests, layers, and a registry's records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Self

from imagefactory.check.smoke.record import SmokeRecord
from imagefactory.errors import FactoryError
from imagefactory.oci.image import Image
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.project.cells import Cell, Exclusion, buildable, exclusions
from imagefactory.project.locks.files import LockedDeb, LockedWheel
from imagefactory.project.project import Project
from imagefactory.publish.attest.attachments import STATEMENTS
from imagefactory.publish.attest.bundles import BadBundleError, Statement
from imagefactory.publish.attest.components import Component, components_of, summarise_parts
from imagefactory.publish.catalog import Catalog, Published
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.history import current_images
from imagefactory.publish.image_contents import Contents, contents_in_registry
from imagefactory.publish.stored_catalog import read_catalog
from imagefactory.publish.tag_owners import tagged_version, tags_for_users
from imagefactory.publish.vulnerabilities import VulnerabilityRecord
from imagefactory.store.digests import Digest

PARALLEL = 8  # requests to a registry at once
LISTED = 200
"""How many published images the page of upgrades describes, the newest."""


@dataclass(frozen=True)
class Evidence:
    """What is attached to an image."""

    smoke: SmokeRecord | None = None
    statements: tuple[str, ...] = ()
    """What somebody signed: signature, SBOM, provenance. Nobody has checked by whom."""
    problems: tuple[str, ...] = ()
    """What could not be read, and why."""
    vulnerabilities: VulnerabilityRecord | None = None


@dataclass(frozen=True)
class RegistryRecords:
    """The records of a registry; without one that was asked, nothing is known to be published."""

    registry: str
    asked: bool = False
    catalog: Catalog = field(default_factory=Catalog)
    evidence: Mapping[Digest, Evidence] = field(default_factory=dict)
    contents: Mapping[Digest, Contents | str] = field(default_factory=dict)
    """What is in the newest images, or why that cannot be read."""


@dataclass(frozen=True)
class Planned:
    """A cell with its plan; the image is None while a layer has never been built."""

    cell: Cell
    plan: Plan
    image: Image | None

    @cached_property
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
        catalog = self.records.catalog
        return {cell: catalog.current(self.tags_of(cell), cell.platform) for cell in self.planned}

    def tags_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the moving tags by which users get images of a cell."""
        return tags_for_users(self.project.matrix, self.records.catalog, cell, self.planned)

    def home(self, model: str) -> Cell | None:
        """Return the cell that a model's tag names, on a platform that has an image if there is one."""
        matrix, catalog = self.project.matrix, self.records.catalog
        arch = matrix.models[model].arch or matrix.defaults.arch
        cells = [
            Cell(model, tagged_version(matrix, catalog, model, arch, platform), arch, platform)
            for platform in matrix.archs[arch].platforms
        ]
        known = [cell for cell in cells if cell in self.planned or cell in self.missing]
        return next((cell for cell in known if self.published.get(cell)), known[0] if known else None)

    def evidence(self, cell: Cell) -> Evidence:
        """Return what is attached to the image that users of a cell get."""
        image = self.published[cell]
        return self.records.evidence.get(image.digest, Evidence()) if image else Evidence()

    @cached_property
    def excluded(self) -> list[Exclusion]:
        """The combinations that no image is made of, each with the reason."""
        return exclusions(self.project.matrix)


def take_stock(project: Project, records: RegistryRecords) -> Stock:
    """Plan every cell that is locked; a cell that cannot be planned is listed with the reason."""
    known_layers = KnownLayers(project.known_layers)
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
        planned[cell] = Planned(cell, plan, known_layers.image(plan))
    return Stock(project, records, planned, missing)


NOT_RECORDED: Final = "not on record"


@dataclass(frozen=True)
class Package:
    """A package of an image."""

    kind: str
    name: str
    version: str
    licence: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, kind: str, part: Component | LockedDeb | LockedWheel, licence: str) -> Self:
        return cls(kind, part.name, part.version, licence, part.size or 0, part.sha256 or "")


@dataclass(frozen=True)
class PackageList:
    """The packages of all images with the same locks, with their licences."""

    slug: str
    title: str
    packages: tuple[Package, ...]
    licences: Mapping[str, int]
    gnu: tuple[str, ...]
    """Those with a GNU licence, with how it applies."""
    images: tuple[str, ...]
    problem: str


def package_lists(stock: Stock) -> dict[str, PackageList]:
    """Return the packages of all images with the same locks, by the slug of their page."""
    alike: dict[str, list[Planned]] = {}
    for planned in stock.planned.values():
        alike.setdefault(packages_slug(planned), []).append(planned)
    return {slug: _list(stock, slug, images) for slug, images in alike.items()}


def packages_slug(planned: Planned) -> str:
    """Return the name of the page with the packages of an image."""
    cell = planned.cell
    return f"{cell.server}-{cell.version.removeprefix(f'{cell.server}-')}-{cell.arch}-{cell.machine}"


def _list(stock: Stock, slug: str, images: list[Planned]) -> PackageList:
    cell, plan, problem = images[0].cell, images[0].plan, ""
    gnu: tuple[str, ...] = ()
    try:
        parts = [part for part in components_of(stock.project, plan) if part.kind in {"wheel", "deb"}]
    except FactoryError as error:  # a licence is not on record
        problem = f"licences of {slug}: {error.what} {error.why}"
        rows = [Package.of("deb", deb, NOT_RECORDED) for deb in stock.project.base_lock(cell).debs]
        rows += [Package.of("wheel", wheel, NOT_RECORDED) for wheel in stock.project.wheel_lock(cell).wheels]
        licences = {NOT_RECORDED: len(rows)}
    else:
        summary = summarise_parts(plan.target, parts)
        rows = [Package.of(part.kind, part, part.licence or "not declared") for part in parts]
        licences = summary.counts
        gnu = tuple(f"{part.name}: {', '.join(part.licences)} ({part.how})" for part in summary.gnu)
    title = f"{cell.runs} on {cell.arch}, {cell.platform}"
    slugs = tuple(planned.cell.slug for planned in images)
    return PackageList(slug, title, tuple(rows), licences, gnu, slugs, problem)


def ask_registry(repository: Repository) -> RegistryRecords:
    """Read the catalog, and the evidence for every image that a tag points at."""
    catalog = read_catalog(repository).catalog
    images = list({current.image.digest: current.image for current in current_images(catalog)}.values())
    with ThreadPoolExecutor(PARALLEL) as pool:
        # What is attached to an image is listed once, for its evidence and for its contents.
        dossiers = {image.digest: Dossier(repository, image.digest) for image in (*images, *catalog.images[-LISTED:])}
        attached = pool.map(lambda image: _evidence(dossiers[image.digest], image), images)
        evidence = {image.digest: record for image, record in zip(images, attached, strict=True)}
        contents = dict(zip(dossiers, pool.map(_contents, dossiers.values()), strict=True))
    return RegistryRecords(repository.reference.name, asked=True, catalog=catalog, evidence=evidence, contents=contents)


def _contents(dossier: Dossier) -> Contents | str:
    try:
        return contents_in_registry(dossier)
    except FactoryError as error:
        return f"{error.what} {error.why}"


def _evidence(dossier: Dossier, image: Published) -> Evidence:
    """Read what is attached to an image; one unreadable record does not hide the others."""
    smoke: SmokeRecord | None = None
    statements: set[str] = set()
    scan: VulnerabilityRecord | None = None
    problems: list[str] = []

    @contextmanager
    def reading(what: str) -> Iterator[None]:
        try:
            yield
        except FactoryError as error:
            problems.append(f"{what}: {error.what} {error.why}")

    with reading("smoke record"):
        smoke = dossier.smoke(image.plan_key)
    with reading("attachments"):
        for _, bundle in dossier.bundles:
            if isinstance(bundle, str):
                problems.append(f"signed statement: {bundle}")
                continue
            try:
                kind = Statement.read(bundle.payload).predicate_type
                statements.add(STATEMENTS.get(kind, kind))
            except BadBundleError as error:
                problems.append(f"signed statement: {error}")
    with reading("vulnerabilities"):
        scan = dossier.scan
    return Evidence(smoke, tuple(sorted(statements)), (*problems, *dossier.left_out), scan)
