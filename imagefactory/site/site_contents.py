"""Gathers everything that the site shows, as plain values that pages and JSON files are made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from typing import Final

from imagefactory.check.bench.comparison import compare, refuse_incomparable
from imagefactory.check.bench.profiles import PublishedFigures, load_published
from imagefactory.check.bench.result import BenchResult, shared_files
from imagefactory.errors import FactoryError, UsageError
from imagefactory.launch.recipe_export import registry_of
from imagefactory.plan.serve.description import describe_cell
from imagefactory.project.cells import default_version, first_of_release
from imagefactory.project.matrix import Matrix
from imagefactory.project.server_versions import server_name, version_title
from imagefactory.publish.catalog import Published
from imagefactory.publish.history import changes, current_images, steps
from imagefactory.publish.image_contents import Contents, contents_of_plan
from imagefactory.publish.upgrade import Known, compare_contents, lines, newest_for, newest_version
from imagefactory.publish.vulnerabilities import SEVERITIES
from imagefactory.site.choosing import best_first, best_start, order_by_use, program_image
from imagefactory.site.guides import Guides, read_guides
from imagefactory.site.image_page import image_page
from imagefactory.site.model_page import model_page
from imagefactory.site.picker import machine_name
from imagefactory.site.picker import machines as machines_of
from imagefactory.site.stock import Document, Planned, Stock, package_lists, packages_slug
from imagefactory.store.digests import Digest
from images.shipped.mods.manifest import STAGES, Mod

NIGHTS: Final = 14
OF_IMAGES: Final = ("image", "server", "mods", "model", "drafter", "tool")
"""In what results of two images may differ; each brings its own tool."""
CHOICES: Final = 3
"""How many models a page without scripts names for each use."""


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
    vulnerabilities: list[Document]
    """Every known vulnerability of today's images, the worst first, with the images that have it."""
    upgrades: list[Document]
    """What changes for the owner of each image."""
    recipes: dict[str, str]
    """The files of a registry of sparkrun, by their paths."""
    machines: list[Document]
    """The machines whose memory is known; the first is the one to begin with."""
    order: dict[str, list[str]]
    """The models for each use, best first."""
    choices: dict[str, list[Document]]
    """The first of them that start on the first machine, if nothing else runs there."""

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
    for cell, page in pages.items():
        page["compared"] = list(_compared(f"{cell}/{cell.machine}", results))
    figures = _figures(stock, problems)

    def rank(model: Document) -> tuple[bool, float]:
        return "tools" not in model["badges"], -model["speed"]["slowest"] if model["speed"] else 0

    def model(name: str) -> Document:
        own = [one for one in results if one.bound.matrix_model == name]
        return model_page(stock, name, pages, own, figures)

    with ThreadPoolExecutor() as pool:  # each page asks the serve program, which is a process of its own
        models = sorted(pool.map(model, project.matrix.models), key=rank)
    images, recipes = list(pages.values()), _recipes(stock, problems)
    upgrades = Upgrades.of(stock, results)
    machines = [one for one in machines_of(project.matrix, stock.planned) if one.get("total")]
    order = order_by_use(project.matrix, models)
    return SiteContents(
        stock=stock,
        title=project.matrix.source.rstrip("/").removesuffix(".git").rpartition("/")[2],
        source=project.matrix.source,
        models=models,
        images=images,
        packages=list(packages.values()),
        mods=_mods(stock),
        guides=read_guides(project.root),
        status=_status(stock, images, upgrades, problems),
        vulnerabilities=_vulnerabilities(images),
        upgrades=list(upgrades.rows()),
        recipes=recipes,
        machines=machines,
        order=order,
        choices=_choices(stock, models, order, machines[0]) if machines else {},
    )


def _choices(
    stock: Stock, models: Sequence[Document], order: Mapping[str, Sequence[str]], machine: Document
) -> dict[str, list[Document]]:
    matrix, by_name = stock.project.matrix, {model["name"]: model for model in models}
    fits = {
        cell.model: best_start(program_image(describe_cell(stock.project, cell)), machine, context=0, users=1)
        for cell in stock.planned
        if machine_name(matrix, cell) == machine["name"] and cell.version == default_version(matrix, cell.model)
    }
    first = {use: best_first([name for name in names if name in fits], fits, 1) for use, names in order.items()}
    return {
        use: [
            {name: by_name[model][name] for name in ("name", "speed", "scores", "image")} | {"room": fits[model].room}
            for model in names[:CHOICES]
        ]
        for use, names in first.items()
    }


def _results(stock: Stock, problems: list[str]) -> Iterator[BenchResult]:
    root = stock.project.root
    for file in shared_files(root):
        try:
            yield BenchResult.read(root / file)
        except FactoryError as error:
            problems.append(f"{file}: {error.what} {error.why}")


def _compared(target: str, results: Sequence[BenchResult]) -> Iterator[Document]:
    """Compare what was measured of a target with other targets, where all else was alike."""
    for left, right in permutations(results, 2):
        if left.bound.target != target or right.bound.target in {target, ""}:
            continue
        try:
            refuse_incomparable(left, right, OF_IMAGES)
        except UsageError:
            continue
        total = compare([left], [right])[0]
        found = total.interval
        yield {
            "with": right.bound.target,
            "profile": right.profile,
            "machine": ", ".join(gpu.name for gpu in right.machine.gpus) or right.machine.platform,
            "dates": [f"{one.started:%Y-%m-%d}" for one in (left, right)],
            "tokens_per_second": [round(total.left, 2), round(total.right, 2)],
            "ratio": [round(one, 3) for one in (found.ratio, found.low, found.high)] if found else None,
            "verdict": total.verdict,
        }


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


def _mods(stock: Stock) -> list[Document]:
    """Describe all mods of the checkout; `files` are those of the newest version that it applies to."""
    users: dict[str, list[str]] = {}
    for cell, planned in stock.planned.items():
        for mod in planned.plan.mods:
            users.setdefault(mod.name, []).append(cell.slug)
    return [
        {
            "name": mod.name,
            "summary": mod.manifest.summary,
            "why": mod.manifest.why,
            "licence": mod.manifest.licence,
            "distribution": mod.manifest.distribution,
            "server": mod.manifest.of_server,
            "upstreamed_in": mod.manifest.upstreamed_in,
            "needed_when": [
                ", ".join(f"{key} {value}" for key, value in one.model_dump(exclude_none=True).items())
                for one in mod.manifest.needed_when
            ],
            "files": list(dict.fromkeys(path for one in mod.manifest.variants[-1:] for path in one.paths)),
            "versions": list(_declared(stock.project.matrix, mod)),
            "images": users.get(mod.name, []),
        }
        for mod in stock.project.mods.values()
    ]


def _declared(matrix: Matrix, mod: Mod) -> Iterator[Document]:
    """Yield what the mod declares about each release, newest first; `mods.check` holds it to that."""
    for name, version in reversed(matrix.versions.items()):
        if version.release is None or first_of_release(matrix, name) != name:
            continue
        if server_name(name) != mod.manifest.of_server:
            continue
        stages = [stage for stage in STAGES if mod.variant(version.version, stage)]
        reason = mod.reason_not_needed(version.version)
        if mod.is_upstream(version.version):
            state, detail = "upstream", f"since {mod.manifest.upstreamed_in}"
        elif stages:
            state, detail = "applies", "to the sources" if stages == ["source"] else ""
        else:
            state = "not needed" if reason else "not covered"
            detail = reason or "mod.yaml says nothing about it"
        yield {"version": version_title(name), "state": state, "detail": detail}


def _status(stock: Stock, images: Sequence[Document], upgrades: Upgrades, problems: Sequence[str]) -> Document:
    catalog = stock.records.catalog
    known = {page["slug"] for page in images}
    days: dict[str, list[Document]] = {}
    for change in reversed(list(_changes(upgrades, known))):
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


def _changes(upgrades: Upgrades, known: set[str]) -> Iterator[Document]:
    """Yield what changed in the last nights, oldest first."""
    catalog = upgrades.stock.records.catalog
    nights = sorted({event.time.date() for event in catalog.events})[-NIGHTS:]
    for event, image, before in steps(catalog):
        if event.time.date() in nights:
            yield {
                "time": f"{event.time:%Y-%m-%dT%H:%M:%SZ}",
                "kind": event.kind,
                "target": str(image.cell),
                "slug": _slug(image, known),
                "digest": image.digest,
                "tags": sorted({*event.named, *event.moved}),
                "changed": changes(before, image),
                "notes": upgrades.lines(before.digest, image.digest) if before else [],
                "left": event.left,
            }


def _vulnerabilities(images: Sequence[Document]) -> list[Document]:
    found: dict[str, Document] = {}
    for image in images:
        for one in image["vulnerabilities"].found if image["vulnerabilities"] else ():
            fresh = {"id": one.id, "aliases": one.aliases, "severity": one.severity}
            row = found.setdefault(one.id, fresh | {"packages": {}, "images": []})
            row["packages"][f"{one.package.partition(' ')[2]} {one.version}"] = one.fixed_in
            row["images"] += [] if image["slug"] in row["images"] else [image["slug"]]
    return sorted(found.values(), key=lambda row: (SEVERITIES.index(row["severity"]), row["id"]))


def _slug(image: Published, known: set[str]) -> str | None:
    return image.cell.slug if image.cell.slug in known else None


@dataclass(frozen=True)
class Upgrades:
    """Everything that is needed to compare any two images of the site."""

    stock: Stock
    known: Known
    contents: Mapping[Digest, Contents | str]
    """What is in each image, or why that is not known."""

    @classmethod
    def of(cls, stock: Stock, results: Sequence[BenchResult]) -> Upgrades:
        project, catalog = stock.project, stock.records.catalog
        planned = {
            one.digest: contents_of_plan(project, one.plan, one.image) for one in stock.planned.values() if one.digest
        }
        read = stock.records.contents.items()  # what cannot be read may be planned here
        contents = planned | {digest: one for digest, one in read if digest not in planned or isinstance(one, Contents)}
        return cls(stock, Known.of(project, catalog, results), contents)

    def lines(self, before: Digest, after: Digest) -> list[str]:
        """Tell what changes between two images, in lines of Markdown."""
        sides = [self.contents.get(one, "It is older than those that this site describes.") for one in (before, after)]
        one, other = sides
        if isinstance(one, str) or isinstance(other, str):
            unknown = next(side for side in sides if isinstance(side, str))
            return [f"What changes is not known: {unknown} `./inv upgrade --from {before}` may tell."]
        return lines(compare_contents(one, other, self.known))

    def rows(self) -> Iterator[Document]:
        """Yield published images, the newest first; without a registry, those that this checkout makes."""
        catalog = self.stock.records.catalog
        for image in reversed(catalog.images):
            if image.digest in self.contents:
                yield self._published(image)
        for planned in () if self.stock.records.asked else self.stock.planned.values():
            if planned.digest:
                yield self._row(planned.digest, self._newest(planned), planned, [])

    def _published(self, image: Published) -> Document:
        catalog = self.stock.records.catalog
        planned = self.stock.planned.get(image.cell)
        days = [f"{event.time:%Y-%m-%d}" for event in catalog.events_of.get(image.digest, ())]
        names = [image.tag, *sorted(catalog.tags_of(image.digest)), *dict.fromkeys(days)]
        return self._row(image.digest, newest_for(catalog, image).digest, planned, names) | {"target": str(image.cell)}

    def _row(self, digest: Digest, newest: Digest, planned: Planned | None, names: Sequence[str]) -> Document:
        held = digest in self.known.held
        return {
            "digest": digest,
            "target": str(planned.cell) if planned else "",
            "slug": planned.cell.slug if planned else None,
            "names": names,
            "newest": newest,
            "state": "rollback" if held else "current" if newest == digest else "update waiting",
            "lines": self.lines(digest, newest),
        }

    def _newest(self, planned: Planned) -> Digest:
        """Return what whoever built an image here would build today."""
        cell = planned.cell
        newer = self.stock.planned.get(replace(cell, version=newest_version(self.stock.project.matrix, cell)), planned)
        return newer.digest or planned.digest or Digest("")
