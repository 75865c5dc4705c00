"""Describes a model for its page and the JSON beside it: settings, memory, drafters, versions, figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from imagefactory.check.bench.profiles import PublishedFigure, PublishedFigures
from imagefactory.check.bench.result import BenchResult, pooled_acceptance
from imagefactory.launch.preview import Preview
from imagefactory.plan.serve.description import Served, describe_cell, image_environment
from imagefactory.project.cells import Cell, default_version, drafter_exclusions, known_faults, tagged_version
from imagefactory.project.served_model import ServedModel
from imagefactory.project.server_versions import TITLES
from imagefactory.project.servers.server import MOST
from imagefactory.site.choosing import alike, gpu_of, hard_score
from imagefactory.site.guides import plain, table_rows
from imagefactory.site.stock import Document, Stock

CONTEXTS: Final = (8_192, 16_384, 32_768, 65_536, 131_072, 262_144)
SESSIONS: Final = (1, 4, 16)
SPARK: Final = "gb10"
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


def model_page(
    stock: Stock,
    name: str,
    images: Mapping[Cell, Document],
    results: Sequence[BenchResult],
    published: PublishedFigures,
) -> Document:
    """Describe a model of the matrix; `image` is the page of its default image, None if that is not locked."""
    project, model = stock.project, stock.project.matrix.models[name]
    home = _home(stock, name)
    image = images.get(home) if home else None
    served = describe_cell(project, home) if home else None
    flags = served.description["image"].get("flags", {}) if served else {}
    versions, about = list(_versions(stock, name, images)), published.about(name)
    reported = [one.model_copy(update={"source": published.sources[one.source]}) for one in about]
    drafters = list(_drafters(stock, home, model))
    speeds = _speeds(reported, drafted=any(one["default"] for one in drafters))
    runs = {version["runs"].partition(" ")[0] for version in versions if version["slug"]}
    return {
        "name": name,
        "repo": model.repo,
        "revision": project.model_lock.commit_of(model.repo) if model.repo else None,
        "weights": model.weights,
        "badges": badges(model),
        "target": str(home) if home else None,
        "image": image["slug"] if image else None,
        "state": image["state"] if image else stock.missing.get(home, "not built") if home else "not built",
        "settings": list(_settings(stock, home)) if home else [],
        "memory": _memory(model),
        "serves": _served_context(served, model),
        "client": _client(served) if served else None,
        "drafters": drafters,
        "servers": [title for title in TITLES.values() if title in runs],
        "versions": versions,
        "not_built": _not_built(stock, name),
        "measured": [_measured(one) for one in sorted(results, key=lambda one: one.started, reverse=True)],
        "reported": reported,
        "speeds": speeds,
        "speed": next((one for one in speeds.get(gpu_of(project.matrix, name, SPARK), ()) if one["users"] == 1), None),
        "quality": [f"{one} ({published.sources[one.source]})" for one in published.quality(name)],
        "scores": [str(one) for one in published.quality(name)],
        "hard": hard_score(published, name),
        "remark": model.remark,
        "sparks": model.sparks,
        "licence": model.licence,
        "languages": model.languages,
        "environment": served.extra if served else {},
        "flags": [f"--{flag.replace('_', '-')} {value}" for flag, value in flags.items()],
    }


def _home(stock: Stock, name: str) -> Cell | None:
    """Return the cell that stands for a model: what its tag names, or while none is published the default."""
    matrix = stock.project.matrix
    arch = matrix.models[name].arch or matrix.defaults.arch
    wanted = Cell(name, tagged_version(matrix, name, arch), arch, matrix.archs[arch].platforms[0])
    if not stock.published.get(wanted):
        wanted = replace(wanted, version=default_version(matrix, name))
    return wanted if wanted in stock.planned or wanted in stock.missing else None


def _settings(stock: Stock, cell: Cell) -> Iterator[Document]:
    """Yield the settings that the image itself prints."""
    served = describe_cell(stock.project, cell)
    table = Preview(stock.project.root, served.description, served.model).markdown()
    for name, default, allowed, meaning in table_rows(table, 4):
        limits = _NO_LIMIT.sub(r"of \1 or more", plain(allowed))
        limits = _LONG_NUMBER.sub(lambda found: f"{int(found[0]):,}", limits)
        yield {"name": plain(name), "default": plain(default), "allowed": limits, "meaning": meaning}


def _served_context(served: Served | None, model: ServedModel) -> int | None:
    """Return the context that the default image serves, which is the model's own unless a setting shortens it."""
    longest = model.memory.context if model.memory else None
    length = image_environment(served.description).get("MAX_MODEL_LEN", "") if served else ""
    return int(length) if length.isdigit() else longest


def _client(served: Served) -> Document:
    """Return what clients have to know: the model's name, and the parsers of tool calls and reasoning, if any."""
    found = {name: value for name, value in image_environment(served.description).items() if value != "off"}
    tools = found.get("TOOL_CALL_PARSER", "") if found.get("ENABLE_AUTO_TOOL_CHOICE") == "1" else ""
    name = (found.get("SERVED_MODEL_NAME") or found["MODEL"]).partition(",")[0]
    return {"model": name, "tools": tools, "reasoning": found.get("REASONING_PARSER", "")}


def _speeds(reported: Sequence[PublishedFigure], *, drafted: bool) -> dict[str, list[Document]]:
    """Return what others measured, drafted as the image does: by GPU, fewest users first."""
    found: dict[str, list[Document]] = {}
    for gpu, users in sorted({(one.gpu.lower(), one.users) for one in reported}):
        figures = [one for one in alike(reported, gpu, drafted=drafted) if one.users == users]
        if rates := [one.tokens_per_second for one in figures]:
            sources = list(dict.fromkeys(one.source for one in figures))
            row = {"gpu": figures[0].gpu, "users": users, "slowest": min(rates), "fastest": max(rates)}
            found.setdefault(gpu, []).append(row | {"sources": sources})
    return found


def _memory(model: ServedModel) -> Document | None:
    """Return what a model needs, in bytes, and its KV cache with 16-bit values by context and sessions."""
    memory = model.memory
    if memory is None:
        return None
    contexts = [*(one for one in CONTEXTS if one < memory.context), memory.context]
    each = {one: memory.kv_bytes_per_token * one + memory.kv_bytes_per_sequence for one in contexts}
    return {
        "weights": round(memory.weights_gb * 1e9),
        "download": round((memory.download_gb or memory.weights_gb) * 1e9),
        "drafter": round(memory.drafter_gb * 1e9),
        "on_disk": round(memory.table_gb * 1e9),
        "kv_per_token": memory.kv_bytes_per_token,
        "kv_per_sequence": memory.kv_bytes_per_sequence,
        "context": memory.context,
        "table": [
            {"context": context, "bytes": {sessions: sessions * needed for sessions in SESSIONS}}
            for context, needed in each.items()
        ],
    }


def _drafters(stock: Stock, home: Cell | None, model: ServedModel) -> Iterator[Document]:
    """Yield the drafters; `refused` says why the default image does not use one."""
    matrix, lock = stock.project.matrix, stock.project.model_lock
    refused = {one.repo: why for one, why in drafter_exclusions(matrix, home)} if home else {}
    usable = [one for one in model.drafters if one.repo not in refused]
    for one in model.drafters:
        ranges = {TITLES[server]: one.range_of(server) for server in TITLES}
        yield {
            "repo": one.repo,
            "method": one.method,
            "tokens": one.tokens,
            "revision": lock.commit_of(one.repo),
            "default": home is not None and one in usable[:1],
            "ranges": {server: wanted or "all" for server, wanted in ranges.items() if wanted is not None},
            "refused": refused.get(one.repo, ""),
        }


def _versions(stock: Stock, name: str, images: Mapping[Cell, Document]) -> Iterator[Document]:
    """Yield the combinations with a server on an arch, default and newest first; `slug` is None without an image."""
    of_model = [cell for cell in (*stock.planned, *stock.missing) if cell.model == name]
    order = list(stock.project.matrix.versions)
    home, servers = _home(stock, name), list(TITLES)
    arch = stock.project.matrix.models[name].arch or stock.project.matrix.defaults.arch

    def rank(cell: Cell) -> tuple[object, ...]:
        newest = servers.index(cell.server), -order.index(cell.version)
        return cell != home, cell.arch != arch, *newest, cell

    for cell in sorted(of_model, key=rank):
        missing = {"slug": None, "state": stock.missing.get(cell, "not built")}
        page = images.get(cell, missing)
        yield {
            "target": str(cell),
            "runs": cell.runs,
            "arch": cell.arch,
            "platform": cell.platform,
            "slug": page["slug"],
            "state": page["state"],
            "faults": known_faults(stock.project.matrix, cell),
            "default": cell == home,
        }


def _not_built(stock: Stock, name: str) -> list[tuple[str, str]]:
    """List the excluded combinations with the reason; those of all archs with one reason are one line."""
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for one in stock.excluded:
        if one.cell.model == name:
            reasons.setdefault((one.cell.runs, one.reason), {})[one.cell.arch] = None
    return [(f"{runs} on {', '.join(archs)}", reason) for (runs, reason), archs in reasons.items()]


def _measured(result: BenchResult) -> Document:
    rates = result.throughput()
    acceptance = pooled_acceptance(result.measurements)
    gpus = ", ".join(gpu.name for gpu in result.machine.gpus)
    return {
        "target": result.bound.target or result.bound.model,
        "digest": result.bound.digest,
        "profile": result.profile,
        "date": f"{result.started:%Y-%m-%d}",
        "machine": gpus or f"{result.machine.cpus} CPUs, {result.machine.platform}",
        "tokens_per_second": round(fmean(rates), 2) if rates else 0.0,
        "acceptance_length": round(acceptance.length, 2) if acceptance else None,
        "settings": result.bound.settings,
        "complete": result.complete,
        "why": result.why,
    }


def badges(model: ServedModel) -> list[str]:
    """Return what pages and the search say about the uses of a model, as its image serves it by default."""
    found: dict[str, bool] = dict.fromkeys(model.good_for, True)
    serve = model.shapes(next(name for name in TITLES if model.range_of(name) is not None), "")[0]
    found |= {
        "tools": serve.enable_auto_tool_choice and serve.tool_call_parser is not None,
        "reasoning": serve.reasoning_parser is not None,
        "vision": bool(model.reads_images) and (serve.limit_mm_per_prompt or {}).get("image") != 0,
        "two Sparks": model.sparks > 1,
        model.remark or "": bool(model.remark),
    }
    return [name for name, holds in found.items() if holds]


def search_words(model: ServedModel) -> str:
    return " ".join(f"{badge} {SYNONYMS.get(badge, '')}" for badge in badges(model))
