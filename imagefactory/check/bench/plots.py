"""Draws benchmark results as SVG files, in a light and a dark version, readable without colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Final

from imagefactory.check.bench.result import (
    BenchResult,
    MeasuredStart,
    mean_spread,
    pooled,
    pooled_acceptance,
    users_text,
)
from imagefactory.errors import InputError
from imagefactory.store.atomic import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS: Final = "osD^vP*X"
_LINES: Final = ("-", "--", ":", "-.")
_HATCHES: Final = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
_SHORT: Final = 30
_WIDEST: Final = 90
_PANEL: Final = 44
_TICKS: Final = 6
_WIDTH: Final = 8.0
_MOST_SERIES: Final = 6
_MOST_STARTS: Final = 4


@dataclass(frozen=True)
class Theme:
    """The colours of a version."""

    name: str
    paper: str
    ink: str
    grid: str
    series: tuple[str, ...]
    """Okabe and Ito's colours, which people with any colour vision can tell apart, and their lightness differs."""


THEMES: Final = (
    Theme(
        *("light", "#ffffff", "#1f2328", "#d0d7de"),
        ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    ),
    Theme(
        *("dark", "#0d1117", "#e6edf3", "#30363d"),
        ("#56b4e9", "#e69f00", "#4dd2a5", "#e3a6c8", "#7aa7d9", "#f0e442"),
    ),
)
_Draw = Callable[["Figure", Sequence[BenchResult], Theme], None]


def plot(results: Sequence[BenchResult], folder: Path) -> list[Path]:
    """Draw every plot that the results have figures for; return the files."""
    measured = [result for result in results if result.measurements]
    plots: dict[str, tuple[list[BenchResult], _Draw]] = {
        "throughput": (
            [one for one in measured if len({each.users for each in one.measurements}) > 1],
            _draw_throughput,
        ),
        "latency": (
            [one for one in measured if any(each.first_token for each in one.measurements)],
            _draw_latency,
        ),
        "acceptance": ([one for one in measured if pooled_acceptance(one.measurements)], _draw_acceptance),
        "start": ([one for one in results if any(start.steps for start in one.starts)], _draw_starts),
        "history": (measured if len(measured) > 1 else [], _draw_history),
    }
    written = []
    for name, (chosen, draw) in plots.items():
        for theme in THEMES if chosen else ():
            written.append(folder / f"{name}-{theme.name}.svg")
            _write(written[-1], theme, chosen, draw)
    if not written:
        raise InputError(
            "bad-bench-result",
            "There is nothing to plot.",
            where=folder,
            why="The results have neither measurements nor starts.",
            fix="Measure first: `./inv bench`.",
        )
    return written


def _write(path: Path, theme: Theme, results: Sequence[BenchResult], draw: _Draw) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - large, and only plots need it
    from matplotlib.figure import Figure  # noqa: PLC0415

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: Any = {
        "svg.hashsalt": "imagefactory",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        **dict.fromkeys(inked, theme.ink),
        **dict.fromkeys(("axes.facecolor", "figure.facecolor", "hatch.color"), theme.paper),
    }
    with mpl.rc_context(style), writing(path) as file:
        figure = Figure(figsize=(_WIDTH, 4.5), layout="constrained")
        draw(figure, results, theme)
        # Without a date, the same results give the same bytes.
        figure.savefig(file, format="svg", metadata={"Date": None})


def _draw_throughput(figure: Figure, results: Sequence[BenchResult], theme: Theme) -> None:
    """Draw tokens per second against users, over all kinds of text."""
    chosen = _newest(results)
    axes = _axes(figure, theme, _title("Throughput", chosen, results))
    for number, result in enumerate(chosen):
        users = sorted({one.users for one in result.measurements})
        points = {count: _by_repeat(result, count) for count in users}
        _line(axes, points, _named(result, chosen), theme=theme, number=number)
    ticks = sorted({one.users for result in chosen for one in result.measurements})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(users) for users in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set(xlabel="users at once", ylabel="tokens per second, all users")
    _legend(figure)


def _draw_latency(figure: Figure, results: Sequence[BenchResult], theme: Theme) -> None:
    """Draw percentiles of the time to the first token and of the time per token, of the newest result."""
    result = max(results, key=lambda result: result.started)
    cells = result.cells()
    has_depth = any(depth for _, _, depth in cells)
    names = [
        f"{kind}\n{users_text(users)}" + (f"\n{depth} deep" if has_depth else "")
        for kind, users, depth in cells
    ]
    every = {
        "to the first token, ms": [mean_spread(one.first_token for one in found) for found in cells.values()],
        "per further token, ms": [mean_spread(one.per_token for one in found) for found in cells.values()],
    }
    shown = {name: spreads for name, spreads in every.items() if any(spreads)}
    figure.set_size_inches(max(_WIDTH, 0.7 * len(names)), 1.2 + 2.6 * len(shown))
    shares = ("p50", "p90", "p99")
    width = 0.8 / len(shares)
    for row, (label, spreads) in enumerate(shown.items()):
        axes = _axes(
            figure, theme, "" if row else _title("Latency", [result], results), (len(shown), 1, row + 1)
        )
        for number, share in enumerate(shares):
            axes.bar(
                [place + (number - 1) * width for place in range(len(names))],
                [getattr(spread, share) if spread else 0 for spread in spreads],
                width,
                color=theme.series[number],
                hatch=_HATCHES[number],
                label="" if row else share,
            )
        axes.grid(visible=False, axis="x")
        axes.set_xticks(range(len(names)), names if row == len(shown) - 1 else [""] * len(names))
        axes.set_ylabel(label)
    _legend(figure)


def _draw_acceptance(figure: Figure, results: Sequence[BenchResult], theme: Theme) -> None:
    """Draw tokens per step for each kind of text."""
    chosen = _newest(results)
    axes = _axes(figure, theme, _title("Speculative decoding", chosen, results))
    kinds = list(dict.fromkeys(kind for result in chosen for kind, _, _ in result.cells()))
    width = 0.84 / len(chosen)
    for number, result in enumerate(chosen):
        found = [pooled_acceptance(one for one in result.measurements if one.kind == kind) for kind in kinds]
        bars = axes.bar(
            [place + (number - (len(chosen) - 1) / 2) * width for place in range(len(kinds))],
            [one.length if one else 0 for one in found],
            width,
            color=theme.series[number],
            hatch=_HATCHES[number],
            label=_named(result, chosen),
        )
        shares = [f"{one.rate:.0%}" if one else "" for one in found]
        many = len(chosen) * len(kinds) > 12  # noqa: PLR2004 - as many as fit side by side
        axes.bar_label(bars, shares, fontsize="small", rotation=90 if many else 0, padding=3)
    axes.axhline(1, color=theme.ink, linewidth=0.8, linestyle=":")
    axes.grid(visible=False, axis="x")
    axes.set_xticks(range(len(kinds)), kinds)
    axes.margins(y=0.15)
    axes.set_ylabel("tokens per step; above the bars:\nshare of the drafts that were accepted")
    _legend(figure)


def _draw_starts(figure: Figure, results: Sequence[BenchResult], theme: Theme) -> None:
    """Draw where the time of starts goes: a waterfall for each of the newest ones."""
    newest = sorted(results, key=lambda result: result.started, reverse=True)
    starts = [(result, start) for result in newest for start in result.starts if start.steps][:_MOST_STARTS]
    steps = list(dict.fromkeys(step for _, start in starts for step in start.steps if step != "ready"))
    chosen = [result for result in newest if any(result is one for one, _ in starts)]
    columns = min(len(starts), 2)
    rows = -(-len(starts) // columns)
    figure.set_size_inches(_WIDTH, 1.2 + rows * (0.8 + 0.3 * len(steps)))
    figure.suptitle(_title("Where the time of a start goes", chosen, results), fontsize="medium")
    most = 1.25 * max(_until_ready(start) for _, start in starts)
    for number, (result, start) in enumerate(starts):
        name = shorten(_named(result, chosen), _PANEL, placeholder=" …") if len(chosen) > 1 else ""
        title = f"{name}\n{start.cache} cache: ready after {_until_ready(start):.1f} s".strip()
        axes = _axes(figure, theme, title, (rows, columns, number + 1))
        begun = 0.0
        for place, step in enumerate(steps):
            seconds = start.steps.get(step, 0.0)
            axes.barh(place, seconds, left=begun, color=theme.series[0])
            begun += seconds
            axes.annotate(
                f"{seconds:.1f}",
                (begun, place),
                (7, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
            )
        axes.set_yticks(range(len(steps)), steps)
        axes.set_xlim(0, most)
        axes.invert_yaxis()
        if number >= len(starts) - columns:
            axes.set_xlabel("seconds")


def _draw_history(figure: Figure, results: Sequence[BenchResult], theme: Theme) -> None:
    """Draw tokens per second of targets over time, with the image behind each point."""
    ordered = sorted(results, key=lambda result: result.started)
    axes = _axes(figure, theme, _title("History", ordered, ordered))
    series: dict[str, list[int]] = {}
    for place, result in enumerate(ordered):
        name = _named(result, ordered, images=False)
        series.setdefault(f"{name}, profile {result.profile}", []).append(place)
    for number, (name, places) in enumerate(series.items()):
        points = {place: ordered[place].throughput() for place in places}
        _line(axes, points, name, theme=theme, number=number)
    ticks = [
        f"{result.started:%Y-%m-%d}\n{result.started:%H:%M}\n{result.bound.digest[7:15]}"
        for result in ordered
    ]
    step = -(-len(ordered) // _TICKS)
    axes.set_xticks(range(0, len(ordered), step), ticks[::step], fontsize="small")
    axes.set_xlim(-0.5, len(ordered) - 0.5)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens per second")
    _legend(figure)


def _axes(figure: Figure, theme: Theme, title: str, place: tuple[int, int, int] = (1, 1, 1)) -> Axes:
    axes: Axes = figure.add_subplot(*place)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=theme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize="medium")
    return axes


def _line(
    axes: Axes, points: Mapping[int, Sequence[float]], label: str, *, theme: Theme, number: int
) -> None:
    """Draw means with their standard deviations."""
    axes.errorbar(
        list(points),
        [fmean(values) for values in points.values()],
        yerr=[stdev(values) if len(values) > 1 else 0 for values in points.values()],
        color=theme.series[number % len(theme.series)],
        marker=_MARKERS[number % len(_MARKERS)],
        linestyle=_LINES[number % len(_LINES)],
        capsize=3,
        label=label,
    )


def _by_repeat(result: BenchResult, users: int) -> list[float]:
    ones = [one for one in result.measurements if one.users == users]
    return [
        pooled(one for one in ones if one.repeat == repeat) for repeat in sorted({one.repeat for one in ones})
    ]


def _until_ready(start: MeasuredStart) -> float:
    return start.steps.get("ready") or start.seconds


def _newest(results: Iterable[BenchResult]) -> list[BenchResult]:
    """Return the newest result of each image with each settings: as many as can be told apart, oldest first."""
    ordered = sorted(results, key=lambda result: result.started)
    found = {
        (one.bound.target, one.bound.digest, str(one.bound.settings), one.profile): one for one in ordered
    }
    return sorted(found.values(), key=lambda result: result.started)[-_MOST_SERIES:]


def _title(what: str, chosen: Sequence[BenchResult], results: Sequence[BenchResult]) -> str:
    """Name what all series have in common, and say if some are left out."""
    names = {_target(result) for result in chosen}
    few = f"{len(chosen)} of" if len(chosen) > 1 else "of"
    left = f" (the newest {few} {len(results)} results)" if len(chosen) < len(results) else ""
    broken = ", incomplete" if len(chosen) == 1 and not chosen[0].complete else ""
    return what + (f": {names.pop()}" if len(names) == 1 else "") + broken + left


def _target(result: BenchResult) -> str:
    return result.bound.target or result.bound.model


def _named(result: BenchResult, results: Sequence[BenchResult], *, images: bool = True) -> str:
    """Name a result by what tells it from the others."""
    bound = result.bound
    parts = [_target(result)] if len({_target(other) for other in results}) > 1 else []
    if images and len({other.bound.digest for other in results}) > 1:
        parts.append(f"image {bound.digest[7:15]}")
    if len({str(other.bound.settings) for other in results}) > 1:
        parts.append(" ".join(f"{name}={value}" for name, value in bound.settings.items()) or "defaults")
    if images and len({other.profile for other in results}) > 1:
        parts.append(f"profile {result.profile}")
    if not result.complete:
        parts.append("incomplete")
    return shorten(", ".join(parts) or _target(result), _WIDEST, placeholder=" …")


def _legend(figure: Figure) -> None:
    """Explain the series below the plot, where nothing is hidden."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(labels) == 1:
        return  # the title names it
    columns = 1 if max(map(len, labels)) > _SHORT else min(len(labels), 4)
    figure.legend(handles, labels, loc="outside lower center", frameon=False, fontsize="small", ncols=columns)
