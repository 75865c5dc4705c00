"""The results in benchmarks/results, which pull requests add: what may be there, and what to compare a new one with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from imagefactory.bench.profiles import FOLDER
from imagefactory.bench.result import BenchResult, Measurement, users_text
from imagefactory.errors.bench import BenchResultError

RESULTS: Final = Path(FOLDER, "results")
_MOST: Final = 1_000_000
"""Tokens per second that no machine of this matrix gives."""
_SLACK: Final = 1.02


def shared_files(root: Path) -> list[Path]:
    """List the shared results, relative to the checkout."""
    return sorted(file.relative_to(root) for file in (root / RESULTS).rglob("*.json"))


def unchanged_files(root: Path, earlier: Path) -> set[Path]:
    """List the shared results that an earlier checkout has too, byte for byte."""
    return {
        file
        for file in shared_files(earlier)
        if (root / file).exists() and (root / file).read_bytes() == (earlier / file).read_bytes()
    }


def check_shared(root: Path, known: Collection[str], unchanged: Collection[Path] = ()) -> int:
    """Check all shared results; return their number.

    Locks move on, so the images of `unchanged` results need not be `known` any more.
    """
    wrong = []
    files = shared_files(root)
    for file in files:
        result = BenchResult.read(root / file)
        images = {*known, result.bound.digest} if file in unchanged else known
        wrong += [f"{file}: {problem}" for problem in problems(result, images)]
    if wrong:
        raise BenchResultError(
            "The benchmark cannot be shared.",
            where=str(RESULTS),
            why="; ".join(wrong) + ".",
            fix="Measure an image of this repository again, and add the file as it was written.",
        )
    return len(files)


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


def baseline_for(result: BenchResult, shared: Iterable[BenchResult]) -> BenchResult | None:
    """Return the newest shared result of the same target, profile, settings and machine."""

    def alike(one: BenchResult) -> object:
        machine = one.machine.model_copy(update={"kernel": "", "engine": "", "gpus": ()})
        gpus = [gpu.name for gpu in one.machine.gpus]
        shape = (one.profile, one.profile_version, one.output, tuple(one.cells()))
        return one.bound.target, one.bound.settings, shape, machine, gpus

    found = [one for one in shared if one.started < result.started and alike(one) == alike(result)]
    return max(found, key=lambda one: one.started, default=None)
