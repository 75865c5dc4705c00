"""Runs two sides of a comparison in turn, each time with a fresh start."""

from __future__ import annotations

from dataclasses import dataclass, replace

from imagefactory.bench.comparison import setting_difference
from imagefactory.bench.result import BenchResult
from imagefactory.bench.running import DRAFTER, Bench, bench_image, reaching_settings
from imagefactory.environment.progress import Say
from imagefactory.smoke.subject import Subject


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    bench: Bench
    subject: Subject


def run_interleaved(
    left: Side, right: Side, rounds: int, say: Say
) -> tuple[list[BenchResult], list[BenchResult]]:
    """Measure both sides in every round; every second round begins with the right one."""
    results: dict[str, list[BenchResult]] = {"A": [], "B": []}
    for number in range(rounds):
        order = [("A", left), ("B", right)]
        for name, side in order if number % 2 == 0 else reversed(order):
            say(f"round {number + 1} of {rounds}, {name}")
            result, _ = bench_image(side.bench, side.subject, say)
            results[name].append(result)
    return results["A"], results["B"]


def asked_differences(left: Side, right: Side) -> set[str]:
    """Return in what two sides were asked to differ: their settings, and their images."""
    first, second = (reaching_settings(side.bench, side.subject) for side in (left, right))
    given = {name for name in {*first, *second} if first.get(name) != second.get(name)}
    asked = {setting_difference(name) for name in given}
    if DRAFTER in given:
        asked.add("drafter")
    if left.subject.digest != right.subject.digest:
        asked |= {"image", "server", "mods", "tool"}
    return asked


def without_drafter(side: Side) -> Side:
    """Return the same side without speculative decoding."""
    return replace(side, bench=replace(side.bench, settings={**side.bench.settings, DRAFTER: "off"}))
