"""Compares benchmark results: ratios with confidence intervals, of what differs only in what was asked.

The intervals are Student's t on logarithms: of pairs if the runs were interleaved, which cancels drift (a machine that
warms up), and Welch's otherwise. A bootstrap of three to five repeats would give intervals that are far too narrow: it
can draw only what it has seen. Logarithms, because the result is a ratio, and A against B has to mirror B against A.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, stdev, variance
from typing import Final

from imagefactory.check.bench.result import BenchResult, Measurement, pooled
from imagefactory.errors import UsageError
from imagefactory.store.progress import count

NOISY: Final = 1.25
"""An interval that reaches from no difference beyond this ratio, or its inverse, tells nothing."""
SETTING: Final = "setting "  # how a differing setting begins
TOO_NOISY: Final = "too noisy to tell"
MOST: Final = 700.0  # the largest exponent: exp(710) overflows
MeasuredCell = tuple[str, int, int]
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
        return not self.low <= 1 <= self.high

    @property
    def too_wide(self) -> bool:
        return not self.shows_difference and (self.high > NOISY or self.low < 1 / NOISY)


def paired_ratio(left: Sequence[float], right: Sequence[float]) -> RatioInterval | None:
    """Return right / left of pairs; None of a single pair, which has no spread, or if there is no ratio."""
    if len(left) == 1 or not _have_logarithms(*left, *right):
        return None
    # As logarithms, half as fast and twice as fast are equally far from no difference.
    logs = [math.log(b) - math.log(a) for a, b in zip(left, right, strict=True)]
    return _interval(fmean(logs), stdev(logs) / math.sqrt(len(logs)), len(logs) - 1)


def welch_ratio(left: Sequence[float], right: Sequence[float]) -> RatioInterval | None:
    """Return right / left of independent values; None if a side is a single one, or if there is no ratio."""
    if 1 in {len(left), len(right)} or not _have_logarithms(*left, *right):
        return None
    logs = [[math.log(value) for value in values] for values in (left, right)]
    parts = [variance(values) / len(values) for values in logs]
    spread = sum(parts)
    # Welch and Satterthwaite's degrees of freedom; the table has whole ones, so they are rounded down.
    below = sum(part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True))
    freedom = int(spread**2 / below + 1e-9) if below else len(left) + len(right) - 2
    return _interval(fmean(logs[1]) - fmean(logs[0]), math.sqrt(spread), max(freedom, 1))


def _have_logarithms(*values: float) -> bool:
    return all(0 < value < math.inf for value in values)


def _interval(middle: float, error: float, freedom: int) -> RatioInterval:
    # Beyond the table, 1.96 + 2.5 / n exceeds the quantile by less than 0.002.
    half = (_T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.5 / freedom) * error
    return RatioInterval(*(math.exp(max(-MOST, min(MOST, value))) for value in (middle, middle - half, middle + half)))


@dataclass(frozen=True)
class Compared:
    """A figure of two sides."""

    name: str
    cell: str
    more_is_better: bool
    left: float
    right: float
    interval: RatioInterval | None

    @property
    def verdict(self) -> str:
        if not _have_logarithms(self.left, self.right):
            return "nothing to compare: a side has no figure"
        if self.interval is None:
            return "one repeat shows no difference; measure again with more"
        if self.interval.too_wide:
            return TOO_NOISY
        if not self.interval.shows_difference:
            return "no difference seen"
        better = (self.interval.ratio > 1) == self.more_is_better
        return "better" if better else "worse"


def compare(lefts: Sequence[BenchResult], rights: Sequence[BenchResult]) -> list[Compared]:
    """Compare two results by their repeats, or two series of interleaved results by their pairs."""
    overall = [_compared("tokens/s", None, lefts, rights)]
    # Whoever compares two profiles compares what both have.
    cells = [cell for cell in lefts[0].cells() if all(cell in side.cells() for side in (*lefts, *rights))]
    return overall + [_compared(name, cell, lefts, rights) for cell in cells for name in _FIGURES]


def _median(field: str) -> Callable[[Sequence[Measurement]], float]:
    return lambda measurements: fmean(getattr(measurement, field).p50 for measurement in measurements)


_FIGURES: Final[dict[str, Callable[[Sequence[Measurement]], float]]] = {
    "tokens/s": pooled,
    "first token p50": _median("first_token"),
    "per token p50": _median("per_token"),
}


def _compared(
    name: str, cell: MeasuredCell | None, lefts: Sequence[BenchResult], rights: Sequence[BenchResult]
) -> Compared:
    left, right = (_values(results, _FIGURES[name], cell) for results in (lefts, rights))
    interval = paired_ratio(left, right) if len(lefts) > 1 else welch_ratio(left, right)
    kind, users, depth = cell or ("all", 0, 0)
    shown = ", ".join([kind, *([count(users, "user")] if users else []), *([f"depth {depth}"] if depth else [])])
    return Compared(name, shown, name == "tokens/s", _mean(left), _mean(right), interval)


def _mean(values: Sequence[float]) -> float:
    """Return the mean by which the ratio is that of the two sides shown beside it, if there is a ratio."""
    return geometric_mean(values) if _have_logarithms(*values) else fmean(values)


def _values(
    results: Sequence[BenchResult],
    figure: Callable[[Sequence[Measurement]], float],
    cell: MeasuredCell | None,
) -> list[float]:
    groups: dict[int, list[Measurement]] = {}
    for number, result in enumerate(results):
        for measurement in result.measurements:
            if cell in {None, measurement.cell}:
                groups.setdefault(number if len(results) > 1 else measurement.repeat, []).append(measurement)
    return [figure(measurements) for _, measurements in sorted(groups.items())]


def noise_advice(compared: Sequence[Compared], results: Sequence[BenchResult]) -> str:
    """Say what may have made a comparison too noisy, and what helps; empty if it was not."""
    if all(figure.verdict != TOO_NOISY for figure in compared):
        return ""
    loads = [result.machine.load for result in results if result.machine.load is not None]
    cpus = results[0].machine.cpus
    load = f"load was up to {max(loads):.1f} on {cpus} CPUs before the starts; " if loads else ""
    return f"too noisy: {load}end other programs, and measure again with more --rounds or --repeats"


def refuse_same(left: BenchResult, right: BenchResult) -> None:
    if left == right:
        raise UsageError(
            "not-comparable",
            "Both sides are the same result.",
            where=left.bound.target or left.bound.model,
            why=f"Each was measured on {left.started:%Y-%m-%d at %H:%M:%S} and has the same figures.",
            fix="Name two results; `./inv bench` measures again.",
        )


def refuse_incomparable(left: BenchResult, right: BenchResult, asked: Collection[str]) -> None:
    """Raise if a result is unusable, or if the two differ in more than was asked."""
    sides = [result.bound.target or result.bound.model for result in (left, right)]
    for name, side, result in zip(("first", "second"), sides, (left, right), strict=True):
        faults = {
            f"It is incomplete: {result.why}.": not result.complete,
            "Its answers did not pass their checks.": not result.sane,
            "It has no measurements.": not result.measurements,
            "Some of its requests failed.": any(measurement.failed for measurement in result.measurements),
        }
        if why := next((fault for fault, holds in faults.items() if holds), ""):
            what = f"The {name} result cannot be compared."
            raise UsageError("not-comparable", what, where=side, why=why, fix="Measure again.")
    more = {name: words for name, words in differences(left, right).items() if name not in asked}
    if more:
        names = " ".join(f"--by {name!r}" for name in more)
        raise UsageError(
            "not-comparable",
            "The results differ in more than was asked.",
            where=" and ".join(sides),
            why="; ".join(more.values()) + ".",
            fix=f"Measure both alike; or, if that is what you want to compare: {names}.",
        )


def differences(left: BenchResult, right: BenchResult) -> dict[str, str]:
    """Return everything in which two results differ, apart from what was measured, by name and in words."""
    first, second = _facts(left), _facts(right)
    return {
        name: f"{name}: {first.get(name) or 'none'} and {second.get(name) or 'none'}"
        for name in dict.fromkeys([*first, *second])
        if first.get(name, "") != second.get(name, "")
    }


def _facts(result: BenchResult) -> dict[str, str]:
    bound, machine = result.bound, result.machine
    gpus = ", ".join(f"{gpu.name} with driver {gpu.driver}" for gpu in machine.gpus) or "no GPU"
    cells = ", ".join(f"{kind}/{users}/{depth}" for kind, users, depth in result.cells())
    return {
        "profile": f"{result.profile} {result.profile_version}, {result.output} tokens, {cells}",
        **result.asked,
        "image": bound.digest,
        "server": f"{bound.server} {bound.server_version}",
        "mods": ", ".join(bound.mods),
        "model": f"{bound.model} {bound.model_revision}".strip(),
        "drafter": f"{bound.drafter} {bound.drafter_revision}".strip(),
        "machine": f"{machine.platform}, {machine.cpus} CPUs {machine.cpu}, {machine.memory >> 30} GiB, {gpus}",
        "kernel": machine.kernel,
        "tool": ", ".join(f"{name} {version}" for name, version in sorted(result.tools.items())),
        **{f"{SETTING}{name}": value for name, value in bound.settings.items()},
    }
