"""Confidence intervals of ratios.

Student's t on logarithms: of pairs if the runs were interleaved, which cancels drift (a machine that warms up), and
Welch's otherwise. A bootstrap of three to five repeats would give intervals that are far too narrow: it can draw only
what it has seen. Logarithms, because the result is a ratio, and A against B has to mirror B against A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance
from typing import Final

_T95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95 % quantiles of Student's t with 1, 2, … degrees of freedom."""


@dataclass(frozen=True)
class RatioInterval:
    """A ratio with its 95 % confidence interval."""

    ratio: float
    low: float
    high: float

    @property
    def shows_difference(self) -> bool:
        """Whether the interval leaves out 1."""
        return not self.low <= 1 <= self.high


def paired_ratio(left: Sequence[float], right: Sequence[float]) -> RatioInterval | None:
    """Return right / left of pairs; None if there are fewer than two."""
    logs = [math.log(b / a) for a, b in zip(left, right, strict=True)]
    if len(logs) < 2:  # noqa: PLR2004 - one value has no spread
        return None
    return _interval(fmean(logs), stdev(logs) / math.sqrt(len(logs)), len(logs) - 1)


def welch_ratio(left: Sequence[float], right: Sequence[float]) -> RatioInterval | None:
    """Return right / left of independent values; None if a side has fewer than two."""
    if min(len(left), len(right)) < 2:  # noqa: PLR2004 - one value has no spread
        return None
    logs = [[math.log(value) for value in values] for values in (left, right)]
    parts = [variance(values) / len(values) for values in logs]
    spread = sum(parts)
    below = sum(part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True))
    freedom = int(spread**2 / below + 1e-9) if below else len(left) + len(right) - 2
    return _interval(fmean(logs[1]) - fmean(logs[0]), math.sqrt(spread), max(freedom, 1))


def _interval(middle: float, error: float, freedom: int) -> RatioInterval:
    half = (_T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.5 / freedom) * error
    return RatioInterval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
