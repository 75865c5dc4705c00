"""Tables of benchmarks, and of comparisons of answers."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.table import Table

from imagefactory.check.answers.comparison import Figures
from imagefactory.check.bench.comparison import Compared
from imagefactory.check.bench.result import BenchResult, Measurement, known_percentiles, mean_spread, pooled_acceptance
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
                (kind, str(users), str(depth), *_figures(measurements))
                for (kind, users, depth), measurements in result.cells().items()
            ),
            *("kind", ">users", ">depth", *_FIGURES),
            title=f"{bound.target or bound.model}, {bound.server} {bound.server_version}, "
            f"profile {result.profile}, means of {result.repeats} repeats"
            f"{', weights: generated' if bound.generated else ''}",
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


def _figures(measurements: list[Measurement]) -> Iterator[str]:
    yield f"{fmean(measurement.tokens_per_second for measurement in measurements):.1f}"
    yield f"{fmean(measurement.tokens_per_second_per_user for measurement in measurements):.1f}"
    for spread in (
        mean_spread(measurement.first_token for measurement in measurements),
        mean_spread(measurement.per_token for measurement in measurements),
    ):
        yield f"{spread.p50:.1f} ms"
        yield f"{spread.p99:.1f} ms" if "p99" in known_percentiles(measurements) else "-"
    acceptance = pooled_acceptance(measurements)
    yield f"{acceptance.rate:.0%}" if acceptance else ""
    yield f"{acceptance.length:.2f}" if acceptance else ""
    yield str(sum(measurement.failed for measurement in measurements))


def comparison_table(compared: Sequence[Compared], left: str, right: str) -> Table:
    """Show ratios with their intervals; what counts is the first line, over everything."""
    rows = []
    for figure in compared:
        unit = "" if figure.more_is_better else " ms"
        interval = figure.interval
        ratio = f"{interval.ratio:.3f}" if interval else f"{figure.right / figure.left:.3f}" if figure.left else ""
        bounds = f"{interval.low:.3f} to {interval.high:.3f}" if interval else ""
        sides = (f"{figure.left:.1f}{unit}", f"{figure.right:.1f}{unit}")
        rows.append((figure.name, figure.cell, *sides, ratio, bounds, figure.verdict))
    columns = ("figure", "of", ">A", ">B", ">B / A", ">95 % interval", "B is")
    return table(rows, *columns, title=f"A is {left}, B is {right}")


def figures_table(difference: Figures, noise: Figures | None) -> Table:
    rows = [("between the sides", difference), *([("between two starts of the first", noise)] if noise else [])]
    return table(
        (
            (
                name,
                str(figures.places),
                f"{figures.divergence:.1e}",
                f"{figures.divergence_p99:.1e}",
                f"{figures.same_choice:.2%}",
                f"{figures.difference:.1e}",
                f"{figures.perplexity:.5f}",
                f"{figures.continuations - figures.partings} of {figures.continuations}",
            )
            for name, figures in rows
        ),
        *("", ">tokens", ">KL", ">KL p99", ">same choice", ">|Δ log p|", ">perplexity ratio", ">same continuations"),
    )


def behaviour_line(figures: Figures) -> str:
    """Say how many scenarios only one side passed, and which."""
    sides = {"first": figures.only_first, "second": figures.only_second}
    only = [f"only the {side}: {', '.join(names)}" for side, names in sides.items() if names]
    apart = len(figures.only_first) + len(figures.only_second)
    return "; ".join([f"{apart} of {figures.scenarios} scenarios differ (p = {figures.chance:.2g})", *only])
