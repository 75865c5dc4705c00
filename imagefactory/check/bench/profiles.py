"""Profiles and prompts of benchmarks, and starts that we observed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, RootModel

from imagefactory.errors import unknown_name
from imagefactory.project.data import load_data
from imagefactory.project.locks.files import Frozen

MIXED: Final = "mixed"  # the kind of a measurement whose prompts are of all kinds
Positive = Annotated[int, Field(gt=0)]


class Profile(Frozen):
    """One way to measure."""

    means: str
    tool: Literal["vllm", "none"] = "vllm"
    kinds: Annotated[tuple[str, ...], Field(min_length=1)] = ("code", "prose", "dialogue", "maths", "tools")
    per_kind: bool  # whether each kind of text is measured by itself
    requests: Annotated[int, Field(ge=0)]  # requests per measurement, or per user where the kinds are mixed
    users: tuple[Positive, ...]
    depths: tuple[Annotated[int, Field(ge=0)], ...] = (0,)  # tokens of conversation before the prompt
    output: int  # tokens of each answer
    repeats: Positive
    fixed_length: bool  # whether every answer has exactly `output` tokens, even if the model would end earlier
    starts: tuple[Literal["cold", "warm"], ...] = ()


class Profiles(Frozen):
    """All profiles; their version is part of every result."""

    version: Positive
    hold: Annotated[float, Field(gt=0, lt=1)]
    profiles: dict[str, Profile]

    def named(self, name: str) -> Profile:
        if name not in self.profiles:
            raise unknown_name("profile", name, self.profiles, "the --profile option")
        return self.profiles[name]


class Prompts(RootModel[dict[str, tuple[str, ...]]]):
    """The prompts of each kind."""

    def of(self, kind: str) -> tuple[str, ...]:
        """Return the prompts of a kind, or of all kinds in turn."""
        if kind != MIXED:
            return self.root[kind]
        return tuple(text for row in zip(*self.root.values(), strict=True) for text in row)


class ObservedStart(Frozen):
    """A start on a machine of ours, for the documentation."""

    about: str
    steps: dict[str, Annotated[float, Field(ge=0)]]


class ObservedStarts(RootModel[tuple[ObservedStart, ...]]):
    """All of them."""


def load_profiles(root: Path) -> Profiles:
    return load_data(root, "profiles.yaml", Profiles)


def load_prompts(root: Path) -> Prompts:
    return load_data(root, "prompts.yaml", Prompts)


def load_starts(root: Path) -> tuple[ObservedStart, ...]:
    return load_data(root, "starts.yaml", ObservedStarts).root


def salted(texts: Iterable[str], count: int, repeat: int, *, plain: bool = False) -> list[str]:
    """Return a number of prompts, each with a mark of its own: the cache of prefixes must not answer a repeat.

    `plain` ones stay as they are if each is asked only once.
    """
    texts = list(texts)
    if plain and repeat == 1 and count <= len(texts):
        return texts[:count]
    return [f"({repeat}-{number}) {texts[number % len(texts)]}" for number in range(count)]
