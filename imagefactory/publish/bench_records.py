"""Holds back images that became slower: their throughput is a smoke test of the gpu level."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Final

from imagefactory.bench.comparison import refuse_incomparable
from imagefactory.bench.measuring import refuse_wrong_answers
from imagefactory.bench.result import BenchResult
from imagefactory.bench.shared import baseline_for, shared_files
from imagefactory.errors import FactoryError
from imagefactory.locks.project import Project
from imagefactory.smoke.record import LevelResult, SmokeRecord, TestOutcome, TestResult

THROUGHPUT: Final = "throughput"
_MEANS: Final = "The image generates fewer tokens per second than the one before."
_MAY_DIFFER: Final = ("image", "server", "mods", "model", "drafter", "tool", "kernel", "machine")


def judged(project: Project, measure: Callable[[], BenchResult], share: float) -> TestResult:
    """Measure an image, and return a smoke test of its throughput against the newest shared result.

    Without one, it passes; a benchmark that ends early or finds wrong answers fails, and so does one that is slower
    by more than `share`.
    """
    try:
        result = measure()
        refuse_wrong_answers(result, Path("build", "bench"))
        shared = [BenchResult.read(project.root / file) for file in shared_files(project.root)]
        baseline = baseline_for(result, shared)
        if baseline:
            refuse_incomparable(baseline, result, _MAY_DIFFER)
    except FactoryError as error:
        return _test("failed", f"{error.what} {error.why}")
    speed = fmean(result.throughput())
    if baseline is None:
        return _test("passed", "there is no shared result to compare with", speed)
    before = fmean(baseline.throughput())
    change = speed / before - 1
    message = f"{speed:.1f} tokens/s, {change:+.1%} of {before:.1f} ({baseline.bound.digest[:19]})"
    if change < -share:
        return _test("failed", f"{message}; {share:.0%} less is allowed", speed)
    return _test("passed", message, speed)


def _test(outcome: TestOutcome, message: str, speed: float | None = None) -> TestResult:
    measured = {} if speed is None else {"tokens_per_second": round(speed, 2)}
    return TestResult(name=THROUGHPUT, outcome=outcome, message=message, means=_MEANS, measured=measured)


def with_throughput(record: SmokeRecord, test: TestResult) -> SmokeRecord:
    """Add the test to the gpu level of a smoke record: a level that fails gets its image no tag."""
    level = record.levels.get("gpu")
    others = [one for one in level.tests if one.name != THROUGHPUT] if level else []
    added = LevelResult.of([*others, test], seconds=level.seconds if level else 0.0)
    return record.model_copy(update={"levels": {**record.levels, "gpu": added}})
