"""Shares results: what a pull request may add to benchmarks/results, and what holds a promotion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Final

from imagefactory.bench.comparison import refuse_incomparable
from imagefactory.bench.profiles import FOLDER
from imagefactory.bench.result import BenchResult, Measurement, users_text
from imagefactory.errors.bench import BenchResultError, ThroughputFellError

RESULTS: Final = Path(FOLDER, "results")
_MOST: Final = 1_000_000
"""Tokens per second that no machine of this matrix gives."""
_SLACK: Final = 1.02


def submitted_file(result: BenchResult) -> Path:
    """Return the name of a submitted result: target, profile, digest and time."""
    target = result.bound.target.replace("/", "-").replace("@", "-")
    name = f"{result.profile}-{result.bound.digest[7:19]}-{result.started:%Y%m%dT%H%M%S}.json"
    return RESULTS / target / name


def submit(root: Path, result: BenchResult, known: Collection[str]) -> Path:
    """Write a result to where a pull request adds it."""
    _refuse(list(problems(result, known)), "the result")
    path = root / submitted_file(result)
    result.write(path)
    return path


def submitted_files(root: Path) -> list[Path]:
    """List the submitted results, relative to the checkout."""
    return sorted(file.relative_to(root) for file in (root / RESULTS).rglob("*.json"))


def check_submitted(root: Path, known: Collection[str], earlier: Collection[Path] = ()) -> list[Path]:
    """Check all submitted results; return their files.

    Locks move on, so the images of `earlier` results need not be known any more; their names have the digests.
    """
    wrong = []
    for file in submitted_files(root):
        result = BenchResult.read(root / file)
        images = {*known, result.bound.digest} if file in earlier else known
        wrong += [f"{file}: {problem}" for problem in problems(result, images)]
        if file != submitted_file(result):
            wrong.append(f"{file}: its name has to be {submitted_file(result)}")
    _refuse(wrong, str(RESULTS))
    return submitted_files(root)


def problems(result: BenchResult, known: Collection[str]) -> Iterator[str]:
    """List why a result cannot be shared."""
    if not result.complete:
        yield f"it is incomplete: {result.why}"
    if not result.sane or (result.measurements and not result.sanity):
        yield "its answers were not checked, or did not pass"
    if not result.bound.digest:
        yield "it names no image: results of --url cannot be run again"
    elif result.bound.digest not in known:
        yield f"no image of this repository has the digest {result.bound.digest}"
    if not result.measurements and not result.starts:
        yield "it has no figures"
    for one in result.measurements:
        yield from (
            f"{one.kind}, {users_text(one.users)}, repeat {one.repeat}: {why}" for why in _implausible(one)
        )


def _implausible(one: Measurement) -> Iterator[str]:
    if one.failed:
        yield f"{one.failed} requests failed"
    if not 0 < one.tokens_per_second < _MOST:
        yield f"{one.tokens_per_second} tokens per second"
    elif one.seconds and not 1 / _SLACK < one.output_tokens / one.seconds / one.tokens_per_second < _SLACK:
        yield "tokens, seconds and tokens per second do not agree"
    if one.acceptance and not one.acceptance.accepted <= one.acceptance.drafted:
        yield "more drafts accepted than made"
    spreads = (one.first_token, one.per_token, one.between_tokens, one.whole_request)
    if any(spread and not spread.p50 <= spread.p90 <= spread.p99 for spread in spreads):
        yield "percentiles are not in order"


def _refuse(wrong: list[str], where: str) -> None:
    if wrong:
        raise BenchResultError(
            "The benchmark cannot be shared.",
            where=where,
            why="; ".join(wrong) + ".",
            fix="Measure an image of this repository again, and submit the file as it was written.",
        )


def shared_results(root: Path) -> list[BenchResult]:
    """Read all submitted results."""
    return [BenchResult.read(root / file) for file in submitted_files(root)]


def baseline_for(result: BenchResult, shared: Iterable[BenchResult]) -> BenchResult | None:
    """Return the newest shared result of the same target, profile, settings and machine."""

    def alike(one: BenchResult) -> object:
        machine = one.machine.model_copy(update={"kernel": "", "engine": "", "gpus": ()})
        gpus = [gpu.name for gpu in one.machine.gpus]
        shape = (one.profile, one.profile_version, one.output, tuple(one.cells()))
        return one.bound.target, one.bound.settings, shape, machine, gpus

    found = [one for one in shared if one.started < result.started and alike(one) == alike(result)]
    return max(found, key=lambda one: one.started, default=None)


def held_by(result: BenchResult, baseline: BenchResult, share: float) -> str:
    """Describe a result beside its baseline; raise if its throughput fell by more than a share."""
    allowed = ("image", "server", "mods", "model", "drafter", "tool", "kernel", "machine")
    refuse_incomparable(baseline, result, allowed)
    before, now = fmean(baseline.throughput()), fmean(result.throughput())
    change = now / before - 1
    line = f"{result.bound.target}: {now:.1f} tokens/s, {change:+.1%} of {before:.1f} ({baseline.bound.digest[:19]})"
    if change < -share:
        raise ThroughputFellError(
            f"{result.bound.target} became slower.",
            where=result.bound.digest,
            why=f"{line}; {share:.0%} less is allowed.",
            fix="Find out why, with `invoke bench.compare` of both images; or submit the result as a new baseline.",
        )
    return line
