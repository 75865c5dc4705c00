"""Describes a model for its page and the JSON beside it: settings, memory, drafters, versions, figures."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from statistics import fmean
from typing import Final

from imagefactory.check.bench.limits import Limit, model_limits
from imagefactory.check.bench.published import PublishedFigures, PublishedStart
from imagefactory.check.bench.result import BenchResult, pooled_acceptance
from imagefactory.launch.preview import Preview
from imagefactory.plan.serve.description import Served, describe_cell, image_environment
from imagefactory.project.cells import Cell, drafter_exclusions, reason_unlocked
from imagefactory.project.counterparts import faults_of
from imagefactory.project.served_model import ServedModel
from imagefactory.project.server_versions import TITLES
from imagefactory.project.servers.server import MOST
from imagefactory.serve_program import checks, flag_words
from imagefactory.site.choosing import gpu_of, hard_score
from imagefactory.site.figures import Reported, Speed, best_of, reported_of, speeds_of
from imagefactory.site.guides import plain, table_rows
from imagefactory.site.image_page import ImagePage
from imagefactory.site.stock import Stock

CONTEXTS: Final = (8_192, 16_384, 32_768, 65_536, 131_072, 262_144)
SESSIONS: Final = (1, 4, 16)
SPARK: Final = "gb10"
# The image prints MOST as the upper limit of settings that have none.
_NO_LIMIT: Final = re.compile(rf"from (\d+) to {MOST}")
_LONG_NUMBER: Final = re.compile(r"(?<![\w.])\d{5,}(?!\w)")
SYNONYMS: Final = {
    "agents": "agent tool tools function calling mcp assistant",
    "chat": "assistant conversation",
    "coding": "code coder programming developer claude cline",
    "documents": "books pdf rag summary long context",
    "many users": "concurrency throughput team server",
    "reasoning": "thinking think reason maths",
    "tools": "tool function calling agents agent mcp assistant",
    "vision": "images pictures photos screenshots ocr multimodal",
}
"""What people type who look for a badge."""


@dataclass(frozen=True)
class Setting:
    """A setting as the image prints it."""

    name: str
    default: str
    allowed: str
    meaning: str


@dataclass(frozen=True)
class Client:
    """What clients have to know: the model's name, and the parsers of tool calls and reasoning, if any."""

    model: str
    tools: str
    reasoning: str
    parser: str
    """Of tool calls, for an image that serves without tools; empty if the serve program knows none."""


@dataclass(frozen=True)
class CacheRow:
    """The KV cache of a context, in bytes by sessions."""

    context: int
    bytes: Mapping[int, int]


@dataclass(frozen=True)
class ModelMemory:
    """What a model needs, in bytes, and its KV cache with 16-bit values."""

    weights: int
    download: int
    drafter: int
    on_disk: int
    kv_per_token: int
    kv_per_sequence: int
    context: int
    table: tuple[CacheRow, ...]


@dataclass(frozen=True)
class Drafter:
    """A drafter of a model; `refused` says why the default image does not use it."""

    repo: str
    method: str
    tokens: int
    revision: str | None
    default: bool
    ranges: Mapping[str, str]
    refused: str


@dataclass(frozen=True)
class Version:
    """A combination with a server on an arch; `slug` is None without an image."""

    target: str
    runs: str
    arch: str
    platform: str
    slug: str | None
    state: str
    faults: tuple[str, ...]
    default: bool


@dataclass(frozen=True)
class Measured:
    """What this project measured."""

    target: str
    digest: str
    profile: str
    date: str
    machine: str
    tokens_per_second: float
    acceptance_length: float | None
    settings: Mapping[str, str]
    complete: bool
    why: str
    shape: str = ""
    """The folder of a model with generated weights; empty for the model itself."""
    by_users: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelPage:
    """A model of the site."""

    name: str
    repo: str | None
    revision: str | None
    weights: str
    badges: tuple[str, ...]
    target: str | None
    image: str | None
    """The slug of the image that stands for it; None if that is not locked."""
    state: str
    settings: tuple[Setting, ...]
    memory: ModelMemory | None
    serves: int | None
    client: Client | None
    drafters: tuple[Drafter, ...]
    servers: tuple[str, ...]
    versions: tuple[Version, ...]
    not_locked: tuple[tuple[str, str], ...]
    """What could be built but is not locked, and why."""
    not_built: tuple[tuple[str, str], ...]
    measured: tuple[Measured, ...]
    generated: tuple[Measured, ...]
    """What this project measured with generated weights: the speed of a shape, and nothing about the model."""
    reported: tuple[Reported, ...]
    starts: Mapping[str, PublishedStart]
    """As authors started it, by what it was called."""
    best: Reported | None
    """Of one user on a DGX Spark, or on two."""
    limits: tuple[Limit, ...]
    """On a DGX Spark, or on two: without a drafter, and if every draft is accepted."""
    speeds: Mapping[str, tuple[Speed, ...]]
    """By GPU, fewest users first."""
    speed: Speed | None
    """Of one user on a DGX Spark, or on two."""
    quality: tuple[str, ...]
    scores: tuple[str, ...]
    hard: float
    remark: str | None
    sparks: int
    licence: str | None
    languages: str | None
    environment: Mapping[str, str]
    flags: tuple[str, ...]

    @property
    def resident(self) -> float:
        """The bytes of weights and drafter on each machine."""
        return (self.memory.weights + self.memory.drafter) / self.sparks if self.memory else 0


def model_page(
    stock: Stock,
    name: str,
    images: Mapping[Cell, ImagePage],
    results: Sequence[BenchResult],
    published: PublishedFigures,
) -> ModelPage:
    """Describe a model of the matrix."""
    project, model = stock.project, stock.project.matrix.models[name]
    home = stock.home(name)
    image = images.get(home) if home else None
    served = describe_cell(project, home) if home else None
    flags = served.description["image"].get("flags", {}) if served else {}
    versions, quality = tuple(_versions(stock, name, images)), published.quality(name)
    reported = reported_of(model, name, published)
    drafters = tuple(_drafters(stock, home, model))
    speeds = speeds_of(reported, drafted=any(drafter.default for drafter in drafters))
    gpu = gpu_of(project.matrix, name, SPARK)
    measured = [_measured(result, model) for result in sorted(results, key=lambda result: result.started, reverse=True)]
    runs = {version.runs.partition(" ")[0] for version in versions if version.slug}
    return ModelPage(
        name=name,
        repo=model.repo,
        revision=project.model_lock.commit_of(model.repo) if model.repo else None,
        weights=model.weights,
        badges=tuple(badges(model)),
        target=str(home) if home else None,
        image=image.slug if image else None,
        state=image.state if image else stock.missing.get(home, "not built") if home else "not built",
        settings=tuple(_settings(Preview(project.root, served.description, served.model))) if served else (),
        memory=_memory(model),
        serves=_served_context(served, model),
        client=client_of(Preview(project.root, served.description, served.model)) if served else None,
        drafters=drafters,
        servers=tuple(title for title in TITLES.values() if title in runs),
        versions=versions,
        not_locked=_by_reason(
            (cell, reason_unlocked(project.matrix, cell) or why)
            for cell, why in stock.missing.items()
            if cell.model == name
        ),
        not_built=_by_reason((one.cell, one.reason) for one in stock.excluded if one.cell.model == name),
        measured=tuple(result for result in measured if not result.shape),
        generated=tuple(result for result in measured if result.shape),
        reported=reported,
        starts={called: start for called, start in published.starts.items() if start.model == name},
        best=best_of(reported, gpu),
        limits=tuple(model_limits(model, published)),
        speeds=speeds,
        speed=next((speed for speed in speeds.get(gpu, ()) if speed.users == 1), None),
        quality=tuple(f"{result} ({published.sources[result.source]})" for result in quality),
        scores=tuple(map(str, quality)),
        hard=hard_score(published, name),
        remark=model.remark,
        sparks=model.sparks,
        licence=model.licence,
        languages=model.languages,
        environment=served.extra if served else {},
        flags=tuple(shlex.join(flag_words(f"--{flag.replace('_', '-')}", value, "")) for flag, value in flags.items()),
    )


def _settings(preview: Preview) -> Iterator[Setting]:
    """Yield the settings that the image itself prints."""
    for name, default, allowed, meaning in table_rows(preview.markdown(), 4):
        limits = _NO_LIMIT.sub(r"of \1 or more", plain(allowed))
        limits = _LONG_NUMBER.sub(lambda number: f"{int(number[0]):,}", limits)
        yield Setting(plain(name), plain(default), limits, meaning)


def _served_context(served: Served | None, model: ServedModel) -> int | None:
    """Return the context that the default image serves, which is the model's own unless a setting shortens it."""
    longest = model.memory.context if model.memory else None
    length = image_environment(served.description).get("MAX_MODEL_LEN", "") if served else ""
    return int(length) if length.isdigit() else longest


def client_of(preview: Preview) -> Client:
    """Return what clients of an image have to know."""
    defaults = {name: value for name, value in image_environment(preview.description).items() if value != "off"}
    tools = defaults.get("TOOL_CALL_PARSER", "") if defaults.get("ENABLE_AUTO_TOOL_CHOICE") == "1" else ""
    name = (defaults.get("SERVED_MODEL_NAME") or defaults["MODEL"]).partition(",")[0]
    return Client(name, tools, defaults.get("REASONING_PARSER", ""), "" if tools else _parser(preview))


def _parser(preview: Preview) -> str:
    """Return the parser that the serve program names to somebody who asks for tools without one."""
    [finding, *_] = checks.run(preview.start({"ENABLE_AUTO_TOOL_CHOICE": "1"}), ["flags"])
    return finding.allowed if finding.setting == "TOOL_CALL_PARSER" else ""


def _memory(model: ServedModel) -> ModelMemory | None:
    memory = model.memory
    if memory is None:
        return None
    contexts = [*(length for length in CONTEXTS if length < memory.context), memory.context]
    per_session = {length: memory.kv_bytes_per_token * length + memory.kv_bytes_per_sequence for length in contexts}
    return ModelMemory(
        weights=round(memory.weights_gb * 1e9),
        download=round((memory.download_gb or memory.weights_gb) * 1e9),
        drafter=round(memory.drafter_gb * 1e9),
        on_disk=round(memory.table_gb * 1e9),
        kv_per_token=memory.kv_bytes_per_token,
        kv_per_sequence=memory.kv_bytes_per_sequence,
        context=memory.context,
        table=tuple(
            CacheRow(length, {sessions: sessions * needed for sessions in SESSIONS})
            for length, needed in per_session.items()
        ),
    )


def _drafters(stock: Stock, home: Cell | None, model: ServedModel) -> Iterator[Drafter]:
    matrix, lock = stock.project.matrix, stock.project.model_lock
    refused = {drafter.repo: why for drafter, why in drafter_exclusions(matrix, home)} if home else {}
    usable = [drafter for drafter in model.drafters if drafter.repo not in refused]
    for drafter in model.drafters:
        ranges = {TITLES[server]: drafter.range_of(server) for server in TITLES}
        yield Drafter(
            repo=drafter.repo,
            method=drafter.method,
            tokens=drafter.tokens,
            revision=lock.commit_of(drafter.repo),
            default=home is not None and drafter in usable[:1],
            ranges={server: versions or "all" for server, versions in ranges.items() if versions is not None},
            refused=refused.get(drafter.repo, ""),
        )


def _versions(stock: Stock, name: str, images: Mapping[Cell, ImagePage]) -> Iterator[Version]:
    """Yield the combinations with a server on an arch, default and newest first."""
    of_model = [cell for cell in (*stock.planned, *stock.missing) if cell.model == name]
    order = list(stock.project.matrix.versions)
    home, servers = stock.home(name), list(TITLES)
    arch = stock.project.matrix.models[name].arch or stock.project.matrix.defaults.arch

    def rank(cell: Cell) -> tuple[object, ...]:
        # The matrix lists the oldest version first.
        newest = servers.index(cell.server), -order.index(cell.version)
        return cell != home, cell.arch != arch, *newest, cell

    for cell in sorted(of_model, key=rank):
        image = images.get(cell)
        yield Version(
            target=str(cell),
            runs=cell.runs,
            arch=cell.arch,
            platform=cell.platform,
            slug=image.slug if image else None,
            state=image.state if image else stock.missing.get(cell, "not built"),
            faults=tuple(map(plain, faults_of(stock.project, cell))),
            default=cell == home,
        )


def _by_reason(cells: Iterable[tuple[Cell, str]]) -> tuple[tuple[str, str], ...]:
    """List combinations with the reason; those of all archs with one reason are one line."""
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for cell, reason in cells:
        reasons.setdefault((cell.runs, reason), {})[cell.arch] = None
    return tuple((f"{runs} on {', '.join(archs)}", reason) for (runs, reason), archs in reasons.items())


def _measured(result: BenchResult, model: ServedModel) -> Measured:
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
        settings=result.bound.settings,
        complete=result.complete,
        why=result.why,
        # The tiny model is a generated one, and has no other weights.
        shape=PurePosixPath(result.bound.model).name if result.bound.generated and not model.generated else "",
        by_users={users: round(fmean(result.throughput(users)), 1) for users in sorted(result.users)},
    )


def badges(model: ServedModel) -> list[str]:
    """Return what pages and the search say about the uses of a model, as its image serves it by default."""
    uses: dict[str, bool] = dict.fromkeys(model.good_for, True)
    serve = model.shapes(next(name for name in TITLES if model.range_of(name) is not None), "")[0]
    uses |= {
        "tools": serve.enable_auto_tool_choice and serve.tool_call_parser is not None,
        "reasoning": serve.reasoning_parser is not None,
        "vision": bool(model.reads_images) and (serve.limit_mm_per_prompt or {}).get("image") != 0,
        "two Sparks": model.sparks > 1,
        model.remark or "": bool(model.remark),
    }
    return [name for name, holds in uses.items() if holds]


def search_words(model: ServedModel) -> str:
    return " ".join(f"{badge} {SYNONYMS.get(badge, '')}" for badge in badges(model))
