"""Tables of benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.table import Table

from imagefactory.bench.comparison import Compared
from imagefactory.bench.profiles import PublishedFigures
from imagefactory.bench.result import BenchResult, Measurement, mean_spread, pooled_acceptance


def result_tables(result: BenchResult) -> Iterator[Table]:
    """Show a result: its measurements, its starts, and the checks of its answers."""
    if result.measurements:
        yield _measurements(result)
    if result.starts:
        table = Table(title="starts, in seconds", title_justify="left")
        steps = list(dict.fromkeys(step for start in result.starts for step in start.steps))
        for name in ("cache", "until it responds", *steps):
            table.add_column(name, justify="left" if name == "cache" else "right")
        for start in result.starts:
            shown = (f"{start.steps[step]:.1f}" if step in start.steps else "" for step in steps)
            table.add_row(start.cache, f"{start.seconds:.1f}", *shown)
        yield table
    if result.sanity or result.left_out:
        table = Table("check", "outcome", "detail", title="answers", title_justify="left")
        for check in result.sanity:
            table.add_row(check.name, check.outcome, check.detail)
        for part in result.left_out:
            table.add_row("the whole profile", "left out", part)
        yield table


def _measurements(result: BenchResult) -> Table:
    bound = result.bound
    named = bound.target or bound.model
    table = Table(
        title=f"{named}, {bound.server} {bound.server_version}, profile {result.profile}, "
        f"means of {result.repeats} repeats",
        title_justify="left",
    )
    for name in ("kind", "users", "depth"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for name in (
        "tokens/s",
        "per user",
        "first token p50",
        "p99",
        "per token p50",
        "p99",
        "accepted",
        "length",
        "failed",
    ):
        table.add_column(name, justify="right")
    for (kind, users, depth), found in result.cells().items():
        table.add_row(kind, str(users), str(depth), *_figures(found))
    return table


def _figures(found: list[Measurement]) -> Iterator[str]:
    yield f"{fmean(one.tokens_per_second for one in found):.1f}"
    yield f"{fmean(one.tokens_per_second_per_user for one in found):.1f}"
    for spread in (
        mean_spread(one.first_token for one in found),
        mean_spread(one.per_token for one in found),
    ):
        yield f"{spread.p50:.1f} ms" if spread else ""
        yield f"{spread.p99:.1f} ms" if spread else ""
    acceptance = pooled_acceptance(found)
    yield f"{acceptance.rate:.0%}" if acceptance else ""
    yield f"{acceptance.length:.2f}" if acceptance else ""
    yield str(sum(one.failed for one in found))


def comparison_table(found: Sequence[Compared], left: str, right: str) -> Table:
    """Show ratios with their intervals; what counts is the first line, over everything."""
    table = Table(title=f"A is {left}, B is {right}", title_justify="left")
    for name in ("figure", "of"):
        table.add_column(name)
    for name in ("A", "B", "B / A", "95 % interval"):
        table.add_column(name, justify="right")
    table.add_column("B is")
    for one in found:
        unit = "" if one.more_is_better else " ms"
        interval = one.interval
        ratio = f"{interval.ratio:.3f}" if interval else f"{one.right / one.left:.3f}"
        bounds = f"{interval.low:.3f} to {interval.high:.3f}" if interval else ""
        table.add_row(
            one.name, one.cell, f"{one.left:.1f}{unit}", f"{one.right:.1f}{unit}", ratio, bounds, one.verdict
        )
    return table


def published_table(published: PublishedFigures, model: str) -> Table | None:
    """Show what others published about a model; None if nobody did."""
    found = published.about(model)
    if not found:
        return None
    table = Table(title="published by others: other images, revisions and settings", title_justify="left")
    for name in ("kind", "GPU", "drafter"):
        table.add_column(name)
    for name in ("users", "tokens/s", "first token", "per token", "accepted", "length"):
        table.add_column(name, justify="right")
    table.add_column("source")
    for one in found:
        table.add_row(
            *(one.kind, one.gpu, one.drafted, str(one.users), f"{one.tokens_per_second:g}"),
            f"{one.first_token_ms:g} ms" if one.first_token_ms else "",
            f"{one.per_token_ms:g} ms" if one.per_token_ms else "",
            f"{one.acceptance_rate:.0%}" if one.acceptance_rate else "",
            f"{one.acceptance_length:.2f}" if one.acceptance_length else "",
            published.sources[one.source],
        )
    return table
