"""Chooses models for a question: what for, on which machine, how long a context, how many users.

What fits is what the checks of the images say. `static/choosing.js` answers alike; tests ask both.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from imagefactory.check.bench.profiles import PublishedFigure, PublishedFigures
from imagefactory.plan.serve.description import Served, write_description
from imagefactory.project.matrix import Matrix
from imagefactory.site.stock import Document
from images.serve.program import checks, memory
from images.serve.program import image as program_images
from images.serve.program import settings as program_settings
from images.serve.program.errors import StartError
from images.serve.program.findings import FAIL, Start
from images.serve.program.readings import Gpu, Readings
from images.serve.program.servers.known import server_of

HARD: Final = "hard questions"
HARD_TEST: Final = "GPQA"
"""The test that orders models for hard questions."""
USES: Final = ("coding", "agents", "chat", "vision", "documents", "many users", HARD)
CHECKS: Final = ("gpu", "kernels", "memory", "combination")
"""The checks that a question can answer; `memory` also knows the longest context of a model."""
HEAD: Final = {"NODE_RANK": "0", "HEAD_ADDRESS": "192.168.100.1"}
"""One of two machines: the head, with an address that the user has to put right."""


@dataclass(frozen=True)
class Candidate:
    """What decides the place of a model."""

    name: str
    uses: Sequence[str]
    """The main one first."""
    tools: bool
    speed: float
    """Tokens per second of one user, 0 if nobody measured them."""
    hard: float = 0


def ranked(use: str, candidates: Iterable[Candidate]) -> list[str]:
    """Order the models for a use: those mainly for it, then what calls tools, then the fastest; or the best in a test.

    For chat the main use does not count: models for agents chat as well.
    """
    if use == HARD:
        return [one.name for one in sorted(candidates, key=lambda one: -one.hard) if one.hard]

    def key(one: Candidate) -> tuple[object, ...]:
        return use not in {"chat", one.uses[0]}, not one.tools, -one.speed

    return [one.name for one in sorted((one for one in candidates if use in one.uses), key=key)]


def hard_score(published: PublishedFigures, name: str) -> float:
    return next((one.score for one in published.quality(name) if one.test == HARD_TEST), 0)


def alike(figures: Iterable[PublishedFigure], gpu: str, *, drafted: bool) -> list[PublishedFigure]:
    """Return the figures of a GPU that were drafted as an image does."""
    return [one for one in figures if one.gpu.lower() == gpu.lower() and (one.drafter != "none") == drafted]


def gpu_of(matrix: Matrix, name: str, arch: str) -> str:
    """Return what published figures call the GPUs that serve a model."""
    sparks = matrix.models[name].sparks
    return f"{sparks}x {arch}" if sparks > 1 else arch


@dataclass(frozen=True)
class Fit:
    """How an image would start; `room` is for how many users with the whole context each, 0 if it refuses."""

    room: int
    given: Mapping[str, str] = field(default_factory=dict)
    """The settings other than the image's defaults."""

    def place(self, users: int) -> int:
        """0 if all users fit, 1 if some do, 2 if none."""
        return 0 if self.room >= users else 1 if self.room else 2


def best_first(names: Iterable[str], fits: Mapping[str, Fit], users: int) -> list[str]:
    """Put what fits first, and keep the order otherwise."""
    return sorted(names, key=lambda name: fits[name].place(users))


def program_image(served: Served) -> program_images.Image:
    """Return an image as its own program reads it."""
    with tempfile.TemporaryDirectory(prefix="imagefactory-") as folder:
        write_description(served.description, served.model, Path(folder))
        return program_images.load(folder)


def best_start(image: program_images.Image, machine: Mapping[str, Any], context: int, users: int) -> Fit:
    """Return the start for a question: with the image's share of the memory, else with the largest that it allows.

    `machine` is one of the picker's; a context of 0 is the image's own.
    """
    given = dict(_asked(image, context, users))
    fit = _fit(image, machine, given)
    if fit.room < users:
        whole = memory.Machine(machine["total"], machine["free"], machine["unified"])
        largest = memory.largest_utilization(whole, server_of(image).share)
        more = _fit(image, machine, given | {"GPU_MEMORY_UTILIZATION": str(largest)})
        return more if more.room > fit.room else fit
    return fit


def _asked(image: program_images.Image, context: int, users: int) -> Iterator[tuple[str, str]]:
    if context and image.settings["MAX_MODEL_LEN"].default != str(context):
        yield "MAX_MODEL_LEN", str(context)
    sequences = image.settings["MAX_NUM_SEQS"].default
    if sequences and users > int(sequences):
        yield "MAX_NUM_SEQS", str(users)


def _fit(image: program_images.Image, machine: Mapping[str, Any], given: dict[str, str]) -> Fit:
    own = (None, None) if machine["unified"] else (machine["total"], machine["free"])
    readings = Readings((Gpu(machine["title"], machine["capability"], *own),), "", machine["total"], machine["free"])
    server = server_of(image)
    nodes = HEAD if image.settings["NODES"].default == "2" else {}
    try:
        settings = program_settings.read(image, {**given, **nodes})
        start = Start(server, image, settings, server.build(image, settings), readings, "", None)
        if any(finding.result == FAIL for finding in checks.run(start, CHECKS)):
            return Fit(0, given)
    except StartError:
        return Fit(0, given)
    needs, share = start.needs(), server.share
    whole = share.whole(memory.Machine(machine["total"], machine["free"], machine["unified"]))
    taken = (settings.fraction("GPU_MEMORY_UTILIZATION") or share.default) * whole
    each = needs.per_sequence + (settings.number("MAX_MODEL_LEN") or needs.context) * (needs.per_token or 0)
    return Fit(math.floor((taken - share.fixed(needs)) / each) if each else 0, given)


def order_by_use(matrix: Matrix, models: Iterable[Document]) -> dict[str, list[str]]:
    """Order the models of pages for each use; two machines of a kind are no other order."""
    candidates = [
        Candidate(
            model["name"],
            matrix.models[model["name"]].good_for,
            "tools" in model["badges"],
            model["speed"]["slowest"] if model["speed"] else 0,
            model["hard"],
        )
        for model in models
    ]
    return {use: ranked(use, candidates) for use in USES}


def model_card(model: Document) -> Document:
    """Return what an answer says about a model."""
    drafter = next((f"{one['method']}, {one['tokens']} per step" for one in model["drafters"] if one["default"]), "")
    own = next((one for one in model["measured"] if one["complete"]), None)
    measured = f"{own['tokens_per_second']:.1f} tokens/s, measured here on {own['machine']}" if own else ""
    return {
        "speeds": model["speeds"],
        "measured": measured,
        "quality": model["quality"],
        "drafter": drafter,
        "licence": model["licence"],
        "remark": model["remark"],
        "download": f"{model['memory']['download'] / 1e9:.0f} GB" if model["memory"] else "",
    }
