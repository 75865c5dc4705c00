"""Describes a model for its page: settings, memory, drafters, servers and versions, measured and published figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from imagefactory.check.bench.profiles import PublishedFigure, PublishedFigures
from imagefactory.check.bench.result import BenchResult, pooled_acceptance
from imagefactory.launch.preview import Preview
from imagefactory.project.cells import Cell, drafter_exclusions
from imagefactory.project.served_model import ServedModel
from imagefactory.project.server_versions import TITLES
from imagefactory.site.guides import plain, table_rows
from imagefactory.site.image_page import ImagePage
from imagefactory.site.stock import Stock

CONTEXTS: Final = (8_192, 16_384, 32_768, 65_536, 131_072, 262_144)
SESSIONS: Final = (1, 4, 16)


@dataclass(frozen=True)
class SettingRow:
    """A setting of the model's image, as the image itself describes it."""

    name: str
    default: str
    allowed: str
    meaning: str


@dataclass(frozen=True)
class DrafterRow:
    """A drafter of the model."""

    repo: str
    method: str
    tokens: int
    revision: str | None
    default: bool
    ranges: dict[str, str]
    """Server -> the versions that it works with."""
    refused: str
    """Why it is not used in the default image; empty if it is usable there."""


@dataclass(frozen=True)
class MemoryRow:
    """The KV cache of some sessions of one length, in bytes, with 16-bit values."""

    context: int
    bytes: dict[int, int]
    """Sessions at the same time -> bytes."""


@dataclass(frozen=True)
class MemoryFacts:
    """What a model needs, in bytes."""

    weights: int
    download: int
    drafter: int
    kv_per_token: int
    kv_per_sequence: int
    context: int
    table: tuple[MemoryRow, ...]


@dataclass(frozen=True)
class Version:
    """A combination of the model with a server on an arch."""

    target: str
    runs: str
    arch: str
    platform: str
    slug: str | None
    """The page of its image; None if it has none."""
    state: str


@dataclass(frozen=True)
class Measured:
    """A benchmark of the factory's own."""

    target: str
    digest: str
    profile: str
    date: str
    machine: str
    tokens_per_second: float
    acceptance_length: float | None
    settings: dict[str, str]
    complete: bool
    why: str


@dataclass(frozen=True)
class ModelPage:
    """A model."""

    name: str
    repo: str | None
    revision: str | None
    weights: str
    target: str | None
    """The default target; None if the model cannot be built for the default server and arch."""
    image: str | None
    """The page of the default image; None if it is not locked."""
    state: str
    settings: tuple[SettingRow, ...]
    memory: MemoryFacts | None
    drafters: tuple[DrafterRow, ...]
    versions: tuple[Version, ...]
    not_built: tuple[tuple[str, str], ...]
    """Combinations that are excluded, each with the reason."""
    measured: tuple[Measured, ...]
    reported: tuple[PublishedFigure, ...]
    environment: dict[str, str]
    flags: tuple[str, ...]
    """Flags that no setting covers."""

    @property
    def title(self) -> str:
        """The name of the repository without its owner, or the model's own name."""
        return self.repo.partition("/")[2] if self.repo else self.name

    @property
    def default_drafter(self) -> DrafterRow | None:
        """The drafter of the default image."""
        return next((drafter for drafter in self.drafters if drafter.default), None)

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers that have a page for this model."""
        served = {version.runs.partition(" ")[0] for version in self.versions if version.slug}
        return tuple(title for title in TITLES.values() if title in served)


def model_page(
    stock: Stock,
    name: str,
    images: dict[Cell, ImagePage],
    results: Sequence[BenchResult],
    published: PublishedFigures,
) -> ModelPage:
    """Describe a model of the matrix."""
    project, model = stock.project, stock.project.matrix.models[name]
    home = _home(stock, name)
    image = images.get(home) if home else None
    served = stock.served(home) if home else None
    return ModelPage(
        name=name,
        repo=model.repo,
        revision=project.model_lock.commit_of(model.repo) if model.repo else None,
        weights=model.weights,
        target=str(home) if home else None,
        image=image.slug if image else None,
        state=image.state if image else stock.missing.get(home, "not built") if home else "not built",
        settings=tuple(_settings(stock, home)) if home else (),
        memory=_memory(model),
        drafters=tuple(_drafters(stock, home, model)),
        versions=tuple(_versions(stock, name, images)),
        not_built=_not_built(stock, name),
        measured=tuple(map(_measured, sorted(results, key=lambda one: one.started, reverse=True))),
        reported=tuple(
            one.model_copy(update={"source": published.sources[one.source]}) for one in published.about(name)
        ),
        environment=dict(served.extra) if served else {},
        flags=tuple(
            f"--{flag.replace('_', '-')} {value}"
            for flag, value in (served.description["image"].get("flags", {}) if served else {}).items()
        ),
    )


def _home(stock: Stock, name: str) -> Cell | None:
    """Return the cell that stands for a model; the machine that makes the site does not matter."""
    matrix = stock.project.matrix
    arch = matrix.models[name].arch or matrix.defaults.arch
    wanted = Cell(name, matrix.defaults.vllm, arch, matrix.archs[arch].platforms[0])
    return wanted if wanted in stock.planned or wanted in stock.missing else None


def _settings(stock: Stock, cell: Cell) -> Iterator[SettingRow]:
    """Yield the settings that the image itself prints."""
    served = stock.served(cell)
    table = Preview(stock.project.root, served.description, served.model).markdown()
    for name, default, allowed, meaning in table_rows(table, 4):
        yield SettingRow(plain(name), plain(default), plain(allowed), meaning)


def _memory(model: ServedModel) -> MemoryFacts | None:
    memory = model.memory
    if memory is None:
        return None
    contexts = [*(one for one in CONTEXTS if one < memory.context), memory.context]

    def needed(context: int, sessions: int) -> int:
        return sessions * (memory.kv_bytes_per_token * context + memory.kv_bytes_per_sequence)

    return MemoryFacts(
        weights=round(memory.weights_gb * 1e9),
        download=round((memory.download_gb or memory.weights_gb) * 1e9),
        drafter=round(memory.drafter_gb * 1e9),
        kv_per_token=memory.kv_bytes_per_token,
        kv_per_sequence=memory.kv_bytes_per_sequence,
        context=memory.context,
        table=tuple(
            MemoryRow(context, {sessions: needed(context, sessions) for sessions in SESSIONS})
            for context in contexts
        ),
    )


def _drafters(stock: Stock, home: Cell | None, model: ServedModel) -> Iterator[DrafterRow]:
    matrix, lock = stock.project.matrix, stock.project.model_lock
    refused = {one.repo: why for one, why in drafter_exclusions(matrix, home)} if home else {}
    usable = [one for one in model.drafters if one.repo not in refused]
    for one in model.drafters:
        ranges = {TITLES[server]: one.range_of(server) for server in TITLES}
        yield DrafterRow(
            repo=one.repo,
            method=one.method,
            tokens=one.tokens,
            revision=lock.commit_of(one.repo),
            default=home is not None and one == usable[0] if usable else False,
            ranges={server: wanted or "all" for server, wanted in ranges.items() if wanted is not None},
            refused=refused.get(one.repo, ""),
        )


def _versions(stock: Stock, name: str, images: dict[Cell, ImagePage]) -> Iterator[Version]:
    of_model = [cell for cell in (*stock.planned, *stock.missing) if cell.model == name]
    order = list(stock.project.matrix.versions)
    home = stock.project.matrix.models[name].arch or stock.project.matrix.defaults.arch
    for cell in sorted(of_model, key=lambda cell: (-order.index(cell.version), cell.arch != home, cell)):
        image = images.get(cell)
        yield Version(
            target=str(cell),
            runs=cell.runs,
            arch=cell.arch,
            platform=cell.platform,
            slug=image.slug if image else None,
            state=image.state if image else stock.missing.get(cell, "not built"),
        )


def _not_built(stock: Stock, name: str) -> tuple[tuple[str, str], ...]:
    """List the excluded combinations; those of all archs with one reason are one line."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in stock.excluded:
        if one.cell.model == name:
            archs = reasons.setdefault((one.cell.runs, one.reason), [])
            archs += [one.cell.arch] if one.cell.arch not in archs else []
    return tuple((f"{runs} on {', '.join(archs)}", reason) for (runs, reason), archs in reasons.items())


def _measured(result: BenchResult) -> Measured:
    rates = result.throughput()
    acceptance = pooled_acceptance(result.measurements)
    gpus = ", ".join(gpu.name for gpu in result.machine.gpus)
    return Measured(
        target=result.bound.target or result.bound.model,
        digest=result.bound.digest,
        profile=result.profile,
        date=f"{result.started:%Y-%m-%d}",
        machine=gpus or f"{result.machine.cpus} CPUs, {result.machine.platform}",
        tokens_per_second=round(fmean(rates), 2) if rates else 0.0,
        acceptance_length=round(acceptance.length, 2) if acceptance else None,
        settings=dict(result.bound.settings),
        complete=result.complete,
        why=result.why,
    )
