"""Gathers everything that the site shows, as plain values that pages and JSON files are made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from imagefactory.check.bench.profiles import PublishedFigures, load_published
from imagefactory.check.bench.result import BenchResult, shared_files
from imagefactory.errors import FactoryError, UsageError
from imagefactory.launch.recipe_export import registry_of
from imagefactory.site.guides import Guides, read_guides
from imagefactory.site.image_page import image_page
from imagefactory.site.mod_page import mod_pages
from imagefactory.site.model_page import model_page
from imagefactory.site.status_page import status_page
from imagefactory.site.stock import Document, Stock, package_lists, packages_slug


@dataclass(frozen=True)
class SiteContents:
    """Everything on the site."""

    stock: Stock
    title: str
    source: str
    models: list[Document]
    """The best to begin with first, as in the README."""
    images: list[Document]
    packages: list[Document]
    mods: list[Document]
    guides: Guides
    status: Document
    recipes: dict[str, str]
    """The files of a registry of sparkrun, by their paths."""

    @cached_property
    def by_slug(self) -> dict[str, Document]:
        return {image["slug"]: image for image in self.images}

    @property
    def start(self) -> Document | None:
        """The published image that the site begins with: of the first model that has one."""
        images = (self.by_slug[model["image"]] for model in self.models if model["image"])
        return next((image for image in images if image["published_digest"]), None)

    @property
    def first(self) -> Document:
        return self.models[0]


def gather(stock: Stock) -> SiteContents:
    """Gather the contents; what cannot be read is listed on the status page."""
    project = stock.project
    packages = package_lists(stock)
    problems = [one["problem"] for one in packages.values() if one["problem"]]
    shared = Counter[str](layer.key for planned in stock.planned.values() for layer in planned.plan.layers)
    pages = {
        cell: image_page(stock, planned, packages[packages_slug(planned)], shared)
        for cell, planned in stock.planned.items()
    }
    results = list(_results(stock, problems))
    figures = _figures(stock, problems)

    def rank(model: Document) -> tuple[bool, float]:
        return "tools" not in model["badges"], -model["speed"]["fastest"] if model["speed"] else 0

    def model(name: str) -> Document:
        own = [one for one in results if one.bound.matrix_model == name]
        return model_page(stock, name, pages, own, figures)

    with ThreadPoolExecutor() as pool:  # each page asks the serve program, which is a process of its own
        models = sorted(pool.map(model, project.matrix.models), key=rank)
    images, recipes = list(pages.values()), _recipes(stock, problems)
    return SiteContents(
        stock=stock,
        title=project.matrix.source.rstrip("/").removesuffix(".git").rpartition("/")[2],
        source=project.matrix.source,
        models=models,
        images=images,
        packages=list(packages.values()),
        mods=mod_pages(stock),
        guides=read_guides(project.root),
        status=status_page(stock, images, problems),
        recipes=recipes,
    )


def _results(stock: Stock, problems: list[str]) -> Iterator[BenchResult]:
    root = stock.project.root
    for file in shared_files(root):
        try:
            yield BenchResult.read(root / file)
        except FactoryError as error:
            problems.append(f"{file}: {error.what} {error.why}")


def _figures(stock: Stock, problems: list[str]) -> PublishedFigures:
    try:
        return load_published(stock.project.root)
    except FactoryError as error:
        problems.append(f"published figures: {error.what} {error.why}")
        return PublishedFigures(sources={}, figures=())


def _recipes(stock: Stock, problems: list[str]) -> dict[str, str]:
    try:
        # Nobody signs the catalog: recipes name the images that this checkout makes.
        digests = {cell: planned.digest for cell, planned in stock.planned.items()}
        return registry_of(stock.project, list(digests), digests).files
    except UsageError as error:
        problems.append(f"recipes: {error.what} No image for the DGX Spark has a digest yet.")
        return {}
