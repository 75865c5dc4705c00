"""Describes the home page: the order of models by use, the first choices, and what an answer says about a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from imagefactory.project.matrix import Matrix
from imagefactory.site.choosing import CODING_AGENT, USES, Candidate, ranked
from imagefactory.site.figures import Speed
from imagefactory.site.model_page import Measured, ModelPage
from imagefactory.site.starts import ImageStart, Machine

CHOICES: Final = 3
"""How many models a page without scripts names for each use."""


@dataclass(frozen=True)
class ModelCard:
    """What an answer says about a model."""

    speeds: Mapping[str, tuple[Speed, ...]]
    """What others published, by GPU."""
    measured: Measured | None
    """The newest whole measurement of this project."""
    quality: tuple[str, ...]
    drafter: str
    licence: str | None
    remark: str | None
    download: str

    @classmethod
    def of(cls, model: ModelPage) -> ModelCard:
        drafters = (f"{drafter.method}, {drafter.tokens} per step" for drafter in model.drafters if drafter.default)
        return cls(
            speeds=model.speeds,
            measured=next((result for result in model.measured if result.complete), None),
            quality=model.quality,
            drafter=next(drafters, ""),
            licence=model.licence,
            remark=model.remark,
            download=f"{model.memory.download / 1e9:.0f} GB" if model.memory else "",
        )


@dataclass(frozen=True)
class Choice:
    """A model to begin with, and how many users with the whole context each it has room for."""

    name: str
    speed: Speed | None
    scores: tuple[str, ...]
    image: str | None
    room: int


def order_by_use(matrix: Matrix, models: Iterable[ModelPage]) -> dict[str, list[str]]:
    """Order models for each use."""
    candidates = [
        Candidate(
            model.name,
            matrix.models[model.name].good_for,
            "tools" in model.badges,
            model.speed.counts if model.speed else 0,
            model.hard,
        )
        for model in models
    ]
    return {use: ranked(use, candidates) for use in (CODING_AGENT, *USES)}


def first_choices(
    order: Mapping[str, Sequence[str]], models: Iterable[ModelPage], starts: Iterable[ImageStart], machine: Machine
) -> dict[str, tuple[Choice, ...]]:
    """Return the first models for each use that start on a machine with nothing else on it."""
    by_name = {model.name: model for model in models}
    fits = {
        start.model: start.memory.fit(machine.memory)
        for start in starts
        if start.default and start.machine == machine.name and start.memory
    }
    choices = {}
    for use, names in order.items():
        # The sort is stable: models of one place stay in the order for the use.
        fitting = sorted((name for name in names if name in fits), key=lambda name: fits[name].place(1))
        pages = [by_name[name] for name in fitting[:CHOICES]]
        choices[use] = tuple(
            Choice(page.name, page.speed, page.scores, page.image, fits[page.name].users) for page in pages
        )
    return choices
