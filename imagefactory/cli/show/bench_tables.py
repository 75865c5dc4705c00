"""Tables of benchmarks, and of comparisons of answers."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.table import Table

from imagefactory.check.answers.comparison import Figures
from imagefactory.check.bench.comparison import Compared
from imagefactory.check.bench.result import BenchResult, Measurement, mean_spread, pooled_acceptance
from imagefactory.cli.show.tables import table

_FIGURES = (
    *(">tokens/s", ">per user", ">first token p50", ">p99", ">per token p50", ">p99"),
    *(">accepted", ">length", ">failed"),
)


def result_tables(result: BenchResult) -> Iterator[Table]:
    if result.measurements:
        bound = result.bound
        yield table(
            (
                (kind, str(users), str(depth), *_figures(found))
                for (kind, users, depth), found in result.cells().items()
            ),
            *("kind", ">users", ">depth", *_FIGURES),
            title=f"{bound.target or bound.model}, {bound.server} {bound.server_version}, "
            f"profile {result.profile}, means of {result.repeats} repeats",
        )
    if result.starts:
        steps = list(dict.fromkeys(step for start in result.starts for step in start.steps))
        rows = (
            (
                start.cache,
                f"{start.seconds:.1f}",
                *(f"{start.steps[step]:.1f}" if step in start.steps else "" for step in steps),
            )
            for start in result.starts
        )
        columns = ("cache", ">until it responds", *(f">{step}" for step in steps))
        yield table(rows, *columns, title="starts, in seconds")
    if result.sanity or result.left_out:
        checks = [(check.name, check.outcome, check.detail) for check in result.sanity]
        left_out = [("the whole profile", "left out", part) for part in result.left_out]
        yield table([*checks, *left_out], "check", "outcome", "detail", title="answers")


def _figures(found: list[Measurement]) -> Iterator[str]:
    yield f"{fmean(one.tokens_per_second for one in found):.1f}"
    yield f"{fmean(one.tokens_per_second_per_user for one in found):.1f}"
    for spread in (mean_spread(one.first_token for one in found), mean_spread(one.per_token for one in found)):
        yield f"{spread.p50:.1f} ms"
        yield f"{spread.p99:.1f} ms"
    acceptance = pooled_acceptance(found)
    yield f"{acceptance.rate:.0%}" if acceptance else ""
    yield f"{acceptance.length:.2f}" if acceptance else ""
    yield str(sum(one.failed for one in found))


def comparison_table(found: Sequence[Compared], left: str, right: str) -> Table:
    """Show ratios with their intervals; what counts is the first line, over everything."""
    rows = []
    for one in found:
        unit = "" if one.more_is_better else " ms"
        interval = one.interval
        ratio = f"{interval.ratio:.3f}" if interval else f"{one.right / one.left:.3f}"
        bounds = f"{interval.low:.3f} to {interval.high:.3f}" if interval else ""
        sides = (f"{one.left:.1f}{unit}", f"{one.right:.1f}{unit}")
        rows.append((one.name, one.cell, *sides, ratio, bounds, one.verdict))
    columns = ("figure", "of", ">A", ">B", ">B / A", ">95 % interval", "B is")
    return table(rows, *columns, title=f"A is {left}, B is {right}")


def figures_table(found: Figures, noise: Figures | None) -> Table:
    rows = [("between the sides", found), *([("between two starts of the first", noise)] if noise else [])]
    return table(
        (
            (
                name,
                str(one.places),
                f"{one.divergence:.1e}",
                f"{one.divergence_p99:.1e}",
                f"{one.same_choice:.2%}",
                f"{one.difference:.1e}",
                f"{one.perplexity:.5f}",
                f"{one.continuations - one.partings} of {one.continuations}",
            )
            for name, one in rows
        ),
        *("", ">tokens", ">KL", ">KL p99", ">same choice", ">|Δ log p|", ">perplexity ratio", ">same continuations"),
    )


def behaviour_line(found: Figures) -> str:
    """Say how many scenarios only one side passed, and which."""
    sides = {"first": found.only_first, "second": found.only_second}
    told = [f"only the {side}: {', '.join(names)}" for side, names in sides.items() if names]
    apart = len(found.only_first) + len(found.only_second)
    return "; ".join([f"{apart} of {found.scenarios} scenarios differ (p = {found.chance:.2g})", *told])
