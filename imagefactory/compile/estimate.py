"""Estimates the work that is left of a compile, from the expected times of its objects and those measured so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from imagefactory.compile.weights import is_measured, recorded

_DOUBT: Final = 0.5
"""How far single objects are off before anything is measured, as a share of their expected time."""
_WEIGHT: Final = 5
"""How many measured objects that counts for."""


@dataclass(frozen=True)
class ObjectWork:
    """The objects of a compile: how many are done, and the time that the others will take."""

    total: int
    done: int
    spent: float
    """The seconds that compilers took for what is done, added up."""
    left: float
    """The seconds that the rest will take on one core, at the speed of this machine."""
    longest: float
    """The seconds of the longest object that is left."""
    doubt: float
    """The standard error of `left`, as a share of it."""

    at_once: float = 1.0
    """How much faster than on one core the objects are compiled."""

    @property
    def remaining(self) -> float:
        """The seconds left; the longest object cannot be divided."""
        return max(self.left / self.at_once, self.longest)


def read_work(folder: Path) -> ObjectWork | None:
    """Return the work of a compile in a folder, or None before ninja knows its objects."""
    found = recorded(folder)
    return estimate(found.expected, found.taken, found.at_once) if found and found.expected else None


def estimate(expected: Mapping[str, float], taken: Mapping[str, float], at_once: float = 1.0) -> ObjectWork:
    """Estimate the work left.

    What is measured gives the speed of this machine and how far single objects are off. Both errors are in the doubt:
    that of the speed shrinks with the objects measured, that of the objects averages out over those left.
    """
    measured = {name: seconds for name, seconds in taken.items() if is_measured(expected[name], seconds)}
    prior = _WEIGHT * sum(expected.values()) / len(expected)
    speed = (prior + sum(measured.values())) / (prior + sum(expected[name] for name in measured))
    off = sum((seconds / expected[name] / speed - 1) ** 2 for name, seconds in measured.items())
    single = math.sqrt((_WEIGHT * _DOUBT**2 + off) / (_WEIGHT + len(measured)))
    rest = [seconds * speed for name, seconds in expected.items() if name not in taken]
    left = sum(rest)
    averaged = sum(seconds**2 for seconds in rest) / left**2 if left else 0.0
    doubt = single * math.sqrt(averaged + 1 / (_WEIGHT + len(measured)))
    spent, longest = sum(taken.values()), max(rest, default=0.0)
    return ObjectWork(len(expected), len(taken), spent, left, longest, doubt if left else 0.0, at_once)
