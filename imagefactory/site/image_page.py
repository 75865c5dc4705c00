"""Describes an image for its page: tags, digest, layers, mods, kernels, tests, signatures, history."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from imagefactory.build.start.docker_run import Launch, docker_run, shell_line
from imagefactory.locks.kernels import recorded_audit
from imagefactory.matrix.cells import Cell
from imagefactory.publish.history import Line, history
from imagefactory.publish.tags import fixed_tag, moving_tags
from imagefactory.site.packages import PackageList
from imagefactory.site.stock import Planned, Stock
from imagefactory.smoke.record import LEVELS, TestResult

NEIGHBOURS: Final = 6
"""How many other images a page compares its own with."""
SOMEBODY: Final = "/home/somebody"


@dataclass(frozen=True)
class LayerRow:
    """A layer, with the number of other images that have it."""

    kind: str
    name: str
    bytes: int | None
    digest: str | None
    key: str
    shared_by: int


@dataclass(frozen=True)
class Neighbour:
    """Another image, and what is left to pull on a machine that has it."""

    slug: str
    target: str
    bytes: int


@dataclass(frozen=True)
class KernelRow:
    """The GPU code of a library, and whether it runs on the chip."""

    library: str
    outcome: str
    why: str
    cubins: dict[str, int]


@dataclass(frozen=True)
class SmokeRow:
    """A level of smoke tests."""

    level: str
    required: bool
    outcome: str
    why: str
    tests: tuple[TestResult, ...] = ()


@dataclass(frozen=True)
class HistoryRow:
    """A change in what users get."""

    date: str
    kind: str
    digest: str
    tag: str
    bytes: int
    changed: tuple[str, ...]
    now: tuple[str, ...]
    held: bool


@dataclass(frozen=True)
class ImagePage:
    """An image."""

    slug: str
    target: str
    model: str
    server: str
    version: str
    runs: str
    """The server and its version, as people call them."""
    arch: str
    gpu: str
    platform: str
    base: str
    python: str
    kernels_from: str
    registry: str
    digest: str | None
    """Of the image that this checkout makes; None while a layer has never been built."""
    published_digest: str | None
    """Of the image that the tags name today."""
    published_on: str | None
    tags: tuple[str, ...]
    fixed_tag: str
    bytes: int | None
    unpacked: int | None
    layers: tuple[LayerRow, ...]
    neighbours: tuple[Neighbour, ...]
    mods: tuple[str, ...]
    notes: tuple[str, ...]
    audit: str
    audit_summary: str
    kernels: tuple[KernelRow, ...]
    packages: str
    """The page of its packages."""
    licences: dict[str, int]
    gnu: tuple[str, ...]
    statements: tuple[str, ...]
    smoke: tuple[SmokeRow, ...]
    smoke_on: str | None
    history: tuple[HistoryRow, ...]
    problems: tuple[str, ...]
    docker_run: str
    environment: dict[str, str]
    entrypoint: tuple[str, ...]
    labels: dict[str, str]

    @property
    def reference(self) -> str:
        """The image by digest, as it is pulled; by its tag while no digest is known."""
        return _reference(self.registry, self.published_digest or self.digest, self.tags)

    @property
    def state(self) -> str:
        """How far it is, in a word or two."""
        if self.published_digest is None:
            return "built" if self.digest else "planned"
        return "current" if self.published_digest == self.digest else "update waiting"

    @property
    def tested(self) -> str:
        """The worst outcome of the required smoke tests; empty without any record."""
        outcomes = [row.outcome for row in self.smoke if row.required]
        for worst in ("failed", "not-run", "no record"):
            if worst in outcomes:
                return worst
        return "passed" if outcomes else "no record"


def image_page(stock: Stock, planned: Planned, packages: PackageList, shared: Mapping[str, int]) -> ImagePage:
    """Describe an image; `shared` counts the images that have a layer, by its key."""
    project, cell, plan = stock.project, planned.cell, planned.plan
    matrix = project.matrix
    tags = moving_tags(matrix, cell)
    arch = matrix.archs[cell.arch]
    audit = recorded_audit(project.wheel_lock(cell), arch, project.kernel_lock)
    lines = history(stock.records.catalog, tags, cell.platform)
    now = stock.published(cell)
    evidence = stock.evidence(cell)
    blobs = planned.image.layers if planned.image else ()
    base = project.base_lock(cell)
    return ImagePage(
        slug=cell.slug,
        target=f"{cell}/{cell.machine}",
        model=cell.model,
        server=cell.server,
        version=cell.version,
        runs=cell.runs,
        arch=cell.arch,
        gpu=arch.gpu or "machines without a GPU",
        platform=cell.platform,
        base=f"Debian {matrix.bases[base.base].debian}",
        python=project.wheel_lock(cell).python,
        kernels_from=plan.kernels,
        registry=stock.records.registry,
        digest=planned.digest,
        published_digest=now.digest if now else None,
        published_on=f"{lines[-1].time:%Y-%m-%d}" if lines else None,
        tags=tags,
        fixed_tag=now.tag if now else fixed_tag(cell, plan.key),
        bytes=sum(blob.size for blob in blobs) or None,
        unpacked=sum(blob.unpacked for blob in blobs) or None,
        layers=tuple(_layers(planned, shared)),
        neighbours=_neighbours(stock, planned),
        mods=tuple(mod.name for mod in plan.mods),
        notes=plan.notes,
        audit=audit.result,
        audit_summary=audit.summary,
        kernels=tuple(
            KernelRow(one.library, one.outcome, one.why, dict(one.kernels.cubins)) for one in audit.verdicts
        ),
        packages=packages.slug,
        licences=packages.licences,
        gnu=packages.gnu,
        statements=evidence.statements,
        smoke=tuple(_smoke(stock, cell)),
        smoke_on=f"{evidence.smoke.started:%Y-%m-%d}" if evidence.smoke else None,
        history=tuple(map(_history_row, reversed(lines))),
        problems=evidence.problems,
        docker_run=_docker_run(stock, planned),
        environment=dict(plan.config.env),
        entrypoint=plan.config.entrypoint,
        labels=dict(plan.config.labels),
    )


def _layers(planned: Planned, shared: Mapping[str, int]) -> Iterator[LayerRow]:
    blobs = planned.image.layers if planned.image else None
    for number, layer in enumerate(planned.plan.layers):
        blob = blobs[number] if blobs else None
        yield LayerRow(
            kind=layer.kind,
            name=layer.name,
            bytes=blob.size if blob else None,
            digest=blob.digest if blob else None,
            key=layer.key,
            shared_by=shared.get(layer.key, 1) - 1,
        )


def _neighbours(stock: Stock, planned: Planned) -> tuple[Neighbour, ...]:
    """List the images of the same machine that leave least to pull, without those of the same model and version."""
    cell = planned.cell
    if planned.image is None:
        return ()
    others = [
        other
        for other in stock.planned.values()
        if other.cell != cell
        and other.image is not None
        and (other.cell.arch, other.cell.platform) == (cell.arch, cell.platform)
    ]
    sizes = sorted((planned.pull_beside(other), other.cell) for other in others)
    own_model = [found for found in sizes if found[1].model == cell.model]
    same_version = [found for found in sizes if found[1].version == cell.version]
    chosen = dict.fromkeys([*own_model[: NEIGHBOURS // 2], *same_version[: NEIGHBOURS // 2]])
    return tuple(Neighbour(other.slug, str(other), count) for count, other in sorted(chosen))


def _smoke(stock: Stock, cell: Cell) -> Iterator[SmokeRow]:
    """Yield every level that is required or was run."""
    required = stock.project.matrix.archs[cell.arch].smoke
    record = stock.evidence(cell).smoke
    published = stock.published(cell)
    for level in LEVELS:
        result = record.levels.get(level) if record else None
        if result is not None:
            yield SmokeRow(level, level in required, result.outcome, result.why, result.tests)
        elif published is not None and level in published.smoke:
            yield SmokeRow(
                level, level in required, published.smoke[level], "from the catalog; no record is attached"
            )
        elif level in required:
            yield SmokeRow(level, required=True, outcome="no record", why="")


def _history_row(line: Line) -> HistoryRow:
    return HistoryRow(
        date=f"{line.time:%Y-%m-%d %H:%M}",
        kind=line.kind,
        digest=line.image.digest,
        tag=line.image.tag,
        bytes=line.image.size,
        changed=line.changed,
        now=line.now,
        held=line.held,
    )


def _docker_run(stock: Stock, planned: Planned) -> str:
    """Return the command that starts the image, for anybody's home."""
    published = stock.published(planned.cell)
    digest = published.digest if published else planned.digest
    tags = moving_tags(stock.project.matrix, planned.cell)
    name = _reference(stock.records.registry, digest, tags)
    description = planned.plan.layers[-1].settings.model_dump()["description"]
    launch = Launch(planned.cell, name, description, models=f"{SOMEBODY}/.cache/huggingface")
    return re.sub(rf"(?<= ){SOMEBODY}/", "~/", shell_line(docker_run(launch)))


def _reference(registry: str, digest: str | None, tags: Sequence[str]) -> str:
    return f"{registry}@{digest}" if digest else f"{registry}:{tags[0]}"
