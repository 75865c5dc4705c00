"""Orders models for a use, by what they are made for, their tools and published figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from imagefactory.check.bench.published import PublishedFigures
from imagefactory.project.matrix import Matrix

CODING_AGENT: Final = "coding agent"
"""A use of models that are for both, and call tools by default."""
HARD: Final = "hard questions"
HARD_TEST: Final = "GPQA"
"""The test that orders models for hard questions."""
USES: Final = ("coding", "agents", "chat", "vision", "documents", "many users", HARD)


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

    For chat the main use does not count: models for agents chat as well. `ordered_by` says the same to readers.
    """
    if use == HARD:
        return [model.name for model in sorted(candidates, key=lambda model: -model.hard) if model.hard]
    if use == CODING_AGENT:
        able = [model for model in candidates if model.tools and {"coding", "agents"} <= set(model.uses)]
        return [model.name for model in sorted(able, key=lambda model: -model.speed)]

    def key(model: Candidate) -> tuple[object, ...]:
        return use not in {"chat", model.uses[0]}, not model.tools, -model.speed

    return [model.name for model in sorted((model for model in candidates if use in model.uses), key=key)]


def ordered_by(use: str) -> str:
    """Say in which order `ranked` puts the models for a use."""
    orders = {
        HARD: f"best in {HARD_TEST} first",
        CODING_AGENT: "fastest first",
        "chat": "with tools first, then fastest",
    }
    return orders.get(use, "made for it first, then fastest")


def hard_score(published: PublishedFigures, name: str) -> float:
    return next((result.score for result in published.quality(name) if result.test == HARD_TEST), 0)


def gpu_of(matrix: Matrix, name: str, arch: str) -> str:
    """Return what published figures call the GPUs that serve a model."""
    sparks = matrix.models[name].sparks
    return f"{sparks}x {arch}" if sparks > 1 else arch
