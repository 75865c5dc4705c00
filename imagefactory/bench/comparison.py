"""Compares benchmark results: ratios with confidence intervals, of what differs only in what was asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from imagefactory.bench.intervals import RatioInterval, paired_ratio, welch_ratio
from imagefactory.bench.result import BenchResult, Measurement, pooled, users_text
from imagefactory.errors.bench import NotComparableError

_SETTING: Final = "setting "
MeasuredCell = tuple[str, int, int]


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
        """Say what the interval shows about the right side."""
        if self.interval is None:
            return "one repeat shows no difference; measure again with more"
        if not self.interval.shows_difference:
            return "no difference seen"
        better = (self.interval.ratio > 1) == self.more_is_better
        return "better" if better else "worse"


def compare(lefts: Sequence[BenchResult], rights: Sequence[BenchResult]) -> list[Compared]:
    """Compare two results by their repeats, or two series of interleaved results by their pairs."""
    found = [_compared("tokens/s", None, lefts, rights)]
    for cell in lefts[0].cells():
        measured = [one for result in (*lefts, *rights) for one in result.measurements if one.cell == cell]
        names = [name for name, field in _NEEDED.items() if all(getattr(one, field) for one in measured)]
        found += [_compared(name, cell, lefts, rights) for name in names]
    return found


def _first_token(measurements: Sequence[Measurement]) -> float:
    return fmean(one.first_token.p50 for one in measurements if one.first_token)


def _per_token(measurements: Sequence[Measurement]) -> float:
    return fmean(one.per_token.p50 for one in measurements if one.per_token)


_FIGURES: Final[dict[str, Callable[[Sequence[Measurement]], float]]] = {
    "tokens/s": pooled,
    "first token p50": _first_token,
    "per token p50": _per_token,
}
_NEEDED: Final = {"tokens/s": "seconds", "first token p50": "first_token", "per token p50": "per_token"}
"""What a measurement has to have; llama-benchy does not give everything."""


def _compared(
    name: str, cell: MeasuredCell | None, lefts: Sequence[BenchResult], rights: Sequence[BenchResult]
) -> Compared:
    left, right = (_values(results, _FIGURES[name], cell) for results in (lefts, rights))
    interval = paired_ratio(left, right) if len(lefts) > 1 else welch_ratio(left, right)
    return Compared(name, _shown(cell), name == "tokens/s", fmean(left), fmean(right), interval)


def _values(
    results: Sequence[BenchResult],
    figure: Callable[[Sequence[Measurement]], float],
    cell: MeasuredCell | None,
) -> list[float]:
    """Return a figure for each of several results, or for each repeat of one."""
    chosen = [[one for one in result.measurements if cell in {None, one.cell}] for result in results]
    if len(chosen) > 1:
        return [figure(measurements) for measurements in chosen]
    repeats = sorted({one.repeat for one in chosen[0]})
    return [figure([one for one in chosen[0] if one.repeat == repeat]) for repeat in repeats]


def _shown(cell: MeasuredCell | None) -> str:
    if cell is None:
        return "all"
    kind, users, depth = cell
    return f"{kind}, {users_text(users)}" + (f", depth {depth}" if depth else "")


def refuse_incomparable(left: BenchResult, right: BenchResult, asked: Collection[str]) -> None:
    """Raise if a result is unusable, or if the two differ in more than was asked."""
    for name, result in (("first", left), ("second", right)):
        wrong = _unusable(result)
        if wrong:
            raise NotComparableError(
                f"The {name} result cannot be compared.",
                where=result.bound.target or result.bound.model,
                why=wrong,
                fix="Measure again.",
            )
    more = [difference for difference in differences(left, right) if difference.name not in asked]
    if more:
        names = " ".join(f"--by {difference.name!r}" for difference in more)
        raise NotComparableError(
            "The results differ in more than was asked.",
            where=f"{left.bound.target or left.bound.model} and {right.bound.target or right.bound.model}",
            why="; ".join(map(str, more)) + ".",
            fix=f"Measure both alike; or, if that is what you want to compare: {names}.",
        )


def _unusable(result: BenchResult) -> str:
    if not result.complete:
        return f"It is incomplete: {result.why}."
    if not result.sane:
        return "Its answers did not pass their checks."
    if not result.measurements:
        return "It has no measurements."
    if any(one.failed for one in result.measurements):
        return "Some of its requests failed."
    return ""


@dataclass(frozen=True)
class ResultDifference:
    """Something in which two results differ."""

    name: str
    left: str
    right: str

    def __str__(self) -> str:
        return f"{self.name}: {self.left or 'none'} and {self.right or 'none'}"


def differences(left: BenchResult, right: BenchResult) -> Iterator[ResultDifference]:
    """List everything in which two results differ, apart from what was measured."""
    sides = [_facts(result) for result in (left, right)]
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        values = [side.get(name, "") for side in sides]
        if values[0] != values[1]:
            yield ResultDifference(name, *values)


def setting_difference(name: str) -> str:
    """Return how a differing setting is named."""
    return f"{_SETTING}{name}"


def _facts(result: BenchResult) -> dict[str, str]:
    bound, machine = result.bound, result.machine
    gpus = ", ".join(f"{gpu.name} with driver {gpu.driver}" for gpu in machine.gpus)
    cells = ", ".join(f"{kind}/{users}/{depth}" for kind, users, depth in result.cells())
    return {
        "profile": f"{result.profile} {result.profile_version}, {result.output} tokens, {cells}",
        "image": bound.digest,
        "server": f"{bound.server} {bound.server_version}",
        "mods": ", ".join(bound.mods),
        "model": f"{bound.model} {bound.model_revision}".strip(),
        "drafter": f"{bound.drafter} {bound.drafter_revision}".strip(),
        "machine": f"{machine.platform}, {machine.cpus} CPUs {machine.cpu}, {machine.memory >> 30} GiB, {gpus}",
        "kernel": machine.kernel,
        "tool": ", ".join(f"{name} {version}" for name, version in sorted(result.tools.items())),
        **{setting_difference(name): value for name, value in bound.settings.items()},
    }
