"""Gathers everything that the site shows, as plain values that pages and JSON files are made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Final

from imagefactory.check.bench.comparison import compare, refuse_incomparable
from imagefactory.check.bench.published import PublishedFigures, load_published
from imagefactory.check.bench.result import BenchResult, shared_files
from imagefactory.errors import FactoryError, UsageError
from imagefactory.launch.recipe_export import registry_of
from imagefactory.serve_program import hosts
from imagefactory.site.guides import Guides, read_guides
from imagefactory.site.home_page import Choice, first_choices, order_by_use
from imagefactory.site.image_page import Comparison, ImagePage, image_page
from imagefactory.site.lookups import nightly_at
from imagefactory.site.model_page import ModelPage, model_page
from imagefactory.site.mods_page import ModPart, mods_page
from imagefactory.site.starts import ImageStart, Machine, image_starts
from imagefactory.site.starts import machines as machines_of
from imagefactory.site.status_page import (
    KnownVulnerability,
    Status,
    Upgrade,
    Upgrades,
    status_page,
    vulnerabilities_page,
)
from imagefactory.site.stock import PackageList, Stock, package_lists, packages_slug

OF_IMAGES: Final = ("image", "server", "mods", "model", "drafter", "tool")
"""In what results of two images may differ; each brings its own tool."""


@dataclass(frozen=True)
class SiteContents:
    """Everything on the site."""

    stock: Stock
    title: str
    source: str
    models: Sequence[ModelPage]
    """The best to begin with first, as in the README."""
    images: Sequence[ImagePage]
    packages: Sequence[PackageList]
    mods: Sequence[ModPart]
    guides: Guides
    hosts: Sequence[Mapping[str, str]]
    """The hosts with known faults: what happens there, what helps, who says so, and when it was seen."""
    status: Status
    vulnerabilities: Sequence[KnownVulnerability]
    scanned_at: str
    """When the nightly workflow scans; empty if that is not known."""
    upgrades: Sequence[Upgrade]
    recipes: Mapping[str, str]
    """The files of a registry of sparkrun, by their paths."""
    machines: Sequence[Machine]
    """The first is the one to begin with."""
    starts: Sequence[ImageStart]
    order: Mapping[str, Sequence[str]]
    """The models for each use, best first."""
    choices: Mapping[str, Sequence[Choice]]
    """The first of them that start on the first machine, if nothing else runs there."""

    @cached_property
    def by_slug(self) -> dict[str, ImagePage]:
        return {image.slug: image for image in self.images}

    @property
    def start(self) -> ImagePage | None:
        """The published image that the site begins with: of the first model that has one."""
        images = (self.by_slug[model.image] for model in self.models if model.image)
        return next((image for image in images if image.published_digest), None)

    @property
    def first(self) -> ModelPage:
        return self.models[0]


def gather(stock: Stock) -> SiteContents:
    """Gather the contents; what cannot be read is listed on the status page."""
    project = stock.project
    source = project.matrix.effective_source
    packages = package_lists(stock)
    problems = [entry.problem for entry in packages.values() if entry.problem]
    shared = Counter[str](layer.key for planned in stock.planned.values() for layer in planned.plan.layers)
    results = list(_results(stock, problems))
    pages = {
        cell: image_page(stock, planned, packages[packages_slug(planned)], shared, _compared(cell.full_target, results))
        for cell, planned in stock.planned.items()
    }
    figures = _figures(stock, problems)

    def rank(model: ModelPage) -> tuple[bool, float]:
        return "tools" not in model.badges, -model.speed.slowest if model.speed else 0

    def model(name: str) -> ModelPage:
        of_model = [result for result in results if result.bound.matrix_model == name]
        return model_page(stock, name, pages, of_model, figures)

    models = sorted(map(model, project.matrix.models), key=rank)
    images, recipes = list(pages.values()), _recipes(stock, problems)
    upgrades = Upgrades.of(stock, results)
    machines = machines_of(project.matrix, stock.planned)
    starts = list(image_starts(project, pages.items()))
    order = order_by_use(project.matrix, models)
    return SiteContents(
        stock=stock,
        title=source.rpartition("/")[2],
        source=source,
        models=models,
        images=images,
        packages=list(packages.values()),
        mods=mods_page(stock),
        guides=read_guides(project.root),
        hosts=[{name: fault[name] for name in ("host", "what", "remedy", "source", "seen")} for fault in hosts.known()],
        status=status_page(stock, images, upgrades, problems),
        vulnerabilities=vulnerabilities_page(images),
        scanned_at=nightly_at(project),
        upgrades=list(upgrades.rows()),
        recipes=recipes,
        machines=machines,
        starts=starts,
        order=order,
        choices=first_choices(order, models, starts, machines[0]) if machines else {},
    )


def _results(stock: Stock, problems: list[str]) -> Iterator[BenchResult]:
    root = stock.project.root
    for file in shared_files(root):
        try:
            yield BenchResult.read(root / file)
        except FactoryError as error:
            problems.append(f"{file}: {error.what} {error.why}")


def _compared(target: str, results: Sequence[BenchResult]) -> Iterator[Comparison]:
    """Compare what was measured of a target with other targets, where all else was alike."""
    for left, right in permutations(results, 2):
        if left.bound.target != target or right.bound.target in {target, ""}:
            continue
        try:
            refuse_incomparable(left, right, OF_IMAGES)
        except UsageError:
            continue
        total = compare([left], [right])[0]
        interval = total.interval
        yield Comparison(
            other=right.bound.target,
            profile=right.profile,
            machine=", ".join(gpu.name for gpu in right.machine.gpus) or right.machine.platform,
            dates=(f"{left.started:%Y-%m-%d}", f"{right.started:%Y-%m-%d}"),
            tokens_per_second=(round(total.left, 2), round(total.right, 2)),
            ratio=(round(interval.ratio, 3), round(interval.low, 3), round(interval.high, 3)) if interval else None,
            verdict=total.verdict,
        )


def _figures(stock: Stock, problems: list[str]) -> PublishedFigures:
    try:
        return load_published(stock.project.root)
    except FactoryError as error:
        problems.append(f"published figures: {error.what} {error.why}")
        return PublishedFigures(sources={}, bandwidths={}, figures=())


def _recipes(stock: Stock, problems: list[str]) -> dict[str, str]:
    try:
        # Nobody signs the catalog: recipes name the images that this checkout makes.
        digests = {cell: planned.digest for cell, planned in stock.planned.items()}
        return registry_of(stock.project, list(digests), digests).files
    except UsageError as error:
        problems.append(f"recipes: {error.what} No image for the DGX Spark has a digest yet.")
        return {}
