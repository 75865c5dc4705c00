"""Describes an image for its page and the JSON beside it: tags, digest, layers, mods, kernels, tests, history."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from imagefactory.check.answers.record import NOT_MEASURED
from imagefactory.check.smoke.record import LEVELS, TestResult
from imagefactory.launch.docker_run import Launch, docker_run, shell_line
from imagefactory.project.cells import Cell, merged_changes
from imagefactory.project.counterparts import faults_of
from imagefactory.project.locks.files import WheelLock
from imagefactory.project.locks.kernels import recorded_audit
from imagefactory.project.server_versions import VLLM
from imagefactory.publish.history import Line, history
from imagefactory.publish.tags import fixed_tag
from imagefactory.publish.vulnerabilities import VulnerabilityRecord
from imagefactory.site.guides import plain
from imagefactory.site.pictures import PictureLayer
from imagefactory.site.stock import PackageList, Planned, Stock

NEIGHBOURS: Final = 6
"""How many other images a page compares its own with."""
HISTORY: Final = 100
"""How many changes a page lists, the newest."""
SOMEBODY: Final = "/home/somebody"


@dataclass(frozen=True)
class Layer(PictureLayer):
    """A layer of an image; size and digest are None if it was never built."""

    digest: str | None
    key: str
    shared_by: int
    """How many other images have it."""


@dataclass(frozen=True)
class Neighbour:
    """An image that shares layers with another, and the bytes that are left to pull for that one."""

    slug: str
    target: str
    bytes: int


@dataclass(frozen=True)
class Library:
    """A library with GPU code, and how it runs on the chip."""

    library: str
    outcome: str
    why: str
    cubins: Mapping[str, int]


@dataclass(frozen=True)
class SmokeLevel:
    """The outcome of a smoke level that is required or was run."""

    level: str
    required: bool
    outcome: str = "no record"
    why: str = ""
    tests: tuple[TestResult, ...] = ()


@dataclass(frozen=True)
class Change:
    """A change of what the tags of an image name."""

    date: str
    kind: str
    digest: str
    tag: str
    bytes: int
    changed: tuple[str, ...]
    now: tuple[str, ...]
    held: bool
    answers: str


@dataclass(frozen=True)
class Comparison:
    """A measured image beside another that was measured alike; `ratio` has its interval."""

    other: str
    profile: str
    machine: str
    dates: tuple[str, str]
    tokens_per_second: tuple[float, float]
    ratio: tuple[float, float, float] | None
    verdict: str


@dataclass(frozen=True)
class ImagePage:
    """An image of the site."""

    slug: str
    target: str
    model: str
    server: str
    version: str
    runs: str
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
    layers: tuple[Layer, ...]
    neighbours: tuple[Neighbour, ...]
    mods: tuple[str, ...]
    notes: tuple[str, ...]
    faults: tuple[str, ...]
    merged: tuple[str, ...]
    """What people once built from a pull request, and the release that brought it."""
    audit: str
    audit_summary: str
    kernels: tuple[Library, ...]
    packages: str
    licences: Mapping[str, int]
    gnu: tuple[str, ...]
    statements: tuple[str, ...]
    smoke: tuple[SmokeLevel, ...]
    smoke_on: str | None
    vulnerabilities: VulnerabilityRecord | None
    history: tuple[Change, ...]
    older: int
    problems: tuple[str, ...]
    docker_run: str
    older_run: str | None
    environment: Mapping[str, str]
    entrypoint: tuple[str, ...]
    labels: Mapping[str, str]
    reference: str
    state: str
    tested: str
    answers: str
    compared: tuple[Comparison, ...]


def image_page(
    stock: Stock, planned: Planned, packages: PackageList, shared: Mapping[str, int], compared: Iterable[Comparison]
) -> ImagePage:
    """Describe an image; `shared` counts the images that have a layer, by its key."""
    project, cell, plan = stock.project, planned.cell, planned.plan
    matrix, lock = project.matrix, project.wheel_lock(cell)
    tags = stock.tags_of(cell)
    arch = matrix.archs[cell.arch]
    audit = recorded_audit(lock, arch, project.kernel_lock)
    lines = history(stock.records.catalog, tags, cell.platform)
    now, evidence = stock.published[cell], stock.evidence(cell)
    blobs = planned.image.layers if planned.image else ()
    published = now.digest if now else None
    digest = published or planned.digest
    registry = stock.records.registry
    reference = f"{registry}@{digest}" if digest else f"{registry}:{tags[0]}"
    smoke = tuple(_smoke(stock, cell))
    head = matrix.models[cell.model].node_settings(0)
    return ImagePage(
        slug=cell.slug,
        target=cell.full_target,
        model=cell.model,
        server=cell.server,
        version=cell.version,
        runs=cell.runs,
        arch=cell.arch,
        gpu=arch.gpu or "machines without a GPU",
        platform=cell.platform,
        base=f"Debian {matrix.bases[project.base_lock(cell).base].debian}",
        python=lock.python,
        kernels_from=_origin_of_kernels(lock),
        registry=registry,
        digest=planned.digest,
        published_digest=published,
        published_on=f"{lines[-1].time:%Y-%m-%d}" if lines else None,
        tags=tags,
        fixed_tag=now.tag if now else fixed_tag(cell, plan.key),
        bytes=sum(blob.size for blob in blobs) or None,
        unpacked=sum(blob.unpacked for blob in blobs) or None,
        layers=tuple(_layers(planned, shared)),
        neighbours=_neighbours(stock, planned),
        mods=tuple(mod.name for mod in plan.mods),
        notes=plan.notes,
        faults=tuple(map(plain, faults_of(stock.project, cell))),
        merged=tuple(merged_changes(matrix, cell)),
        audit=audit.result,
        audit_summary=audit.summary,
        kernels=tuple(
            Library(verdict.library, verdict.outcome, verdict.why, verdict.kernels.cubins) for verdict in audit.verdicts
        ),
        packages=packages.slug,
        licences=packages.licences,
        gnu=packages.gnu,
        statements=evidence.statements,
        smoke=smoke,
        smoke_on=f"{evidence.smoke.started:%Y-%m-%d}" if evidence.smoke else None,
        vulnerabilities=evidence.vulnerabilities,
        history=tuple(_changes(lines[: -HISTORY - 1 : -1])),  # newest first
        older=max(0, len(lines) - HISTORY),
        problems=evidence.problems,
        docker_run=_docker_run(planned, reference, head),
        older_run=_docker_run(planned, f"{registry}@{lines[-2].image.digest}", head) if lines[1:] else None,
        environment=plan.config.env,
        entrypoint=plan.config.entrypoint,
        labels=plan.config.labels,
        reference=reference,
        state=_state(published, planned.digest),
        tested=_tested(smoke),
        answers=lines[-1].answers if lines else NOT_MEASURED,
        compared=tuple(compared),
    )


def _state(published: str | None, digest: str | None) -> str:
    if published is None:
        return "can be built" if digest else "planned"
    return "current" if published == digest else "update waiting"


def _tested(smoke: Sequence[SmokeLevel]) -> str:
    """Return the worst outcome of the required levels."""
    outcomes = {level.outcome for level in smoke if level.required}
    worst = next((word for word in ("failed", "not-run", "no record") if word in outcomes), "passed")
    return worst if outcomes else "no record"


def _layers(planned: Planned, shared: Mapping[str, int]) -> Iterator[Layer]:
    blobs = planned.image.layers if planned.image else (None,) * len(planned.plan.layers)
    for layer, blob in zip(planned.plan.layers, blobs, strict=True):
        size, digest = (blob.size, blob.digest) if blob else (None, None)
        yield Layer(layer.kind, layer.name, size, digest, layer.key, shared.get(layer.key, 1) - 1)


def _neighbours(stock: Stock, planned: Planned) -> tuple[Neighbour, ...]:
    """List the images of the same machine that leave least to pull, of the same model or of the same version."""
    cell, sizes = planned.cell, planned.sizes
    others = sorted(
        (sum(size for digest, size in sizes.items() if digest not in other.sizes), other.cell)
        for other in stock.planned.values()
        if sizes and other.image and other.cell != cell
        if (other.cell.arch, other.cell.platform) == (cell.arch, cell.platform)
    )
    same_model = [entry for entry in others if entry[1].model == cell.model]
    same_version = [entry for entry in others if entry[1].version == cell.version]
    chosen = dict.fromkeys([*same_model[: NEIGHBOURS // 2], *same_version[: NEIGHBOURS // 2]])
    return tuple(Neighbour(neighbour.slug, str(neighbour), count) for count, neighbour in sorted(chosen))


def _origin_of_kernels(lock: WheelLock) -> str:
    """Say who compiled vLLM's kernels, and what else was compiled for the chip."""
    compiled = [wheel.name for wheel in lock.wheels if wheel.compiled and wheel.name != VLLM]
    origin = "published" if lock.kernels == "upstream" else lock.kernels
    return f"{origin} kernels{''.join(f', {name} compiled' for name in compiled)}"


def _smoke(stock: Stock, cell: Cell) -> Iterator[SmokeLevel]:
    """Yield every level that is required or was run."""
    required = stock.project.matrix.archs[cell.arch].smoke
    record, published = stock.evidence(cell).smoke, stock.published[cell]
    for level in LEVELS:
        if record and (result := record.levels.get(level)):
            yield SmokeLevel(level, level in required, result.outcome, result.why, result.tests)
        elif published and level in published.smoke:
            why = "from the catalog; no record is attached"
            yield SmokeLevel(level, level in required, published.smoke[level], why)
        elif level in required:
            yield SmokeLevel(level, required=True)


def _changes(lines: Iterable[Line]) -> Iterator[Change]:
    for line in lines:
        image = line.image
        yield Change(
            f"{line.time:%Y-%m-%d %H:%M}",
            line.kind,
            image.digest,
            image.tag,
            image.size,
            line.changed,
            line.now,
            line.held,
            line.answers,
        )


def _docker_run(planned: Planned, reference: str, head: Mapping[str, str]) -> str:
    """Return the command that starts the image, for anybody's home; of a pair, that of the first machine."""
    description = planned.plan.layers[-1].settings.model_dump()["description"]
    models = f"{SOMEBODY}/.cache/huggingface"
    launch = Launch(planned.cell, reference, description, given=head, models=models)
    # The shell expands ~ only at the beginning of a word.
    return re.sub(rf"(?<= ){SOMEBODY}/", "~/", shell_line(docker_run(launch)))
