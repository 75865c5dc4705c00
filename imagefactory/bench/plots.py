"""Draws benchmark results as SVG files, in a light and a dark version, readable without colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any, Final

from imagefactory.bench.result import BenchResult, mean_spread, pooled_acceptance
from imagefactory.errors.bench import BenchResultError
from imagefactory.store.atomic import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS: Final = "osD^vP*X"
_LINES: Final = ("-", "--", ":", "-.")
_HATCHES: Final = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
_FEW: Final = 2
_SHORT: Final = 30
_WIDEST: Final = 90
_TICKS: Final = 8


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
        "light",
        "#ffffff",
        "#1f2328",
        "#d0d7de",
        ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    ),
    Theme(
        "dark",
        "#0d1117",
        "#e6edf3",
        "#30363d",
        ("#56b4e9", "#e69f00", "#4dd2a5", "#e3a6c8", "#7aa7d9", "#f0e442"),
    ),
)

Draw = Callable[["Axes", Sequence[BenchResult], Theme], None]


def plot(results: Sequence[BenchResult], folder: Path) -> list[Path]:
    """Draw every plot that the results have figures for; return the files."""
    written = []
    for name, (has, draw) in _PLOTS.items():
        chosen = [result for result in results if has(result)]
        if not chosen or (name == "history" and len(chosen) < _FEW):
            continue
        for theme in THEMES:
            path = folder / f"{name}-{theme.name}.svg"
            _write(path, theme, chosen, draw)
            written.append(path)
    if not written:
        raise BenchResultError(
            "There is nothing to plot.",
            where=folder,
            why="The results have neither measurements nor starts.",
            fix="Measure first: `invoke bench`.",
        )
    return written


def _write(path: Path, theme: Theme, results: Sequence[BenchResult], draw: Draw) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - large, and only plots need it
    from matplotlib.figure import Figure  # noqa: PLC0415

    style: Any = {
        "svg.hashsalt": "imagefactory",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.edgecolor": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "axes.facecolor": theme.paper,
        "figure.facecolor": theme.paper,
        "hatch.color": theme.paper,
    }
    with mpl.rc_context(style), writing(path) as file:
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=theme.grid, linewidth=0.6)
        axes.set_axisbelow(True)
        draw(axes, results, theme)
        # Without a date, the same results give the same bytes.
        figure.savefig(file, format="svg", metadata={"Date": None})


def _named(result: BenchResult, results: Sequence[BenchResult], *, images: bool = True) -> str:
    """Name a result by what tells it from the others."""
    bound = result.bound
    parts = [bound.target or bound.model]
    if images and len({other.bound.digest for other in results}) > 1:
        parts.append(bound.digest[7:15])
    if len({str(other.bound.settings) for other in results}) > 1:
        parts.append(" ".join(f"{name}={value}" for name, value in bound.settings.items()) or "defaults")
    return shorten(", ".join(parts), _WIDEST, placeholder=" …")


def _legend(axes: Axes) -> None:
    """Explain the series below the plot, where nothing is hidden."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 if max(map(len, labels)) > _SHORT else min(len(labels), 7)
    assert axes.figure is not None  # noqa: S101 - it was added to one
    axes.figure.legend(
        handles, labels, loc="outside lower center", frameon=False, fontsize="small", ncols=columns
    )


def _throughput(axes: Axes, results: Sequence[BenchResult], theme: Theme) -> None:
    for number, result in enumerate(results):
        cells = {
            users: found
            for (_, users, _), found in sorted(result.cells().items(), key=lambda item: item[0][1])
        }
        speeds = [[one.tokens_per_second for one in found] for found in cells.values()]
        axes.errorbar(
            list(cells),
            [fmean(found) for found in speeds],
            yerr=[stdev(found) if len(found) > 1 else 0 for found in speeds],
            color=theme.series[number % len(theme.series)],
            marker=_MARKERS[number % len(_MARKERS)],
            linestyle=_LINES[number % len(_LINES)],
            capsize=3,
            label=_named(result, results),
        )
    ticks = sorted({users for result in results for _, users, _ in result.cells()})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(users) for users in ticks])
    axes.set_ylim(bottom=0)
    axes.set(xlabel="users at once", ylabel="tokens per second, all users", title="Throughput")
    _legend(axes)


def _latency(axes: Axes, results: Sequence[BenchResult], theme: Theme) -> None:
    result = results[-1]
    cells = result.cells()
    names = [
        f"{kind}\n{depth or users} {'deep' if depth else 'user' if users == 1 else 'users'}"
        for kind, users, depth in cells
    ]
    shares = ("p50", "p90", "p99")
    width = 0.8 / len(shares)
    spreads = [mean_spread(one.first_token for one in found) for found in cells.values()]
    for number, share in enumerate(shares):
        axes.bar(
            [place + (number - 1) * width for place in range(len(names))],
            [getattr(spread, share) if spread else 0 for spread in spreads],
            width,
            color=theme.series[number],
            hatch=_HATCHES[number],
            label=share,
        )
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="milliseconds to the first token", title=f"Latency: {_named(result, [result])}")
    _legend(axes)


def _acceptance(axes: Axes, results: Sequence[BenchResult], theme: Theme) -> None:
    kinds = list(dict.fromkeys(kind for result in results for kind, _, _ in result.cells()))
    width = 0.8 / len(results)
    for number, result in enumerate(results):
        found = [pooled_acceptance(one for one in result.measurements if one.kind == kind) for kind in kinds]
        places = [place + (number - (len(results) - 1) / 2) * width for place in range(len(kinds))]
        bars = axes.bar(
            places,
            [one.length if one else 0 for one in found],
            width,
            color=theme.series[number % len(theme.series)],
            hatch=_HATCHES[number % len(_HATCHES)],
            label=_named(result, results),
        )
        axes.bar_label(bars, [f"{one.rate:.0%}" if one else "" for one in found], fontsize="small")
    axes.axhline(1, color=theme.ink, linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set(ylabel="tokens per step", title="Speculative decoding; above the bars: accepted drafts")
    _legend(axes)


def _starts(axes: Axes, results: Sequence[BenchResult], theme: Theme) -> None:
    rows = [(_named(result, results), start) for result in results for start in result.starts if start.steps]
    colours: dict[str, int] = {}
    for place, (_, start) in enumerate(rows):
        begun = 0.0
        for step, seconds in start.steps.items():
            if step == "ready":
                continue
            first = step not in colours
            number = colours.setdefault(step, len(colours))
            axes.barh(
                place,
                seconds,
                left=begun,
                color=theme.series[number % len(theme.series)],
                hatch=_HATCHES[number % len(_HATCHES)],
                edgecolor=theme.paper,
                label=step if first else None,
            )
            begun += seconds
        axes.text(begun, place, f" {begun:.0f} s", va="center")
    names = [fill(f"{name}, {start.cache} cache", 2 * _SHORT) for name, start in rows]
    axes.set_yticks(range(len(rows)), names, fontsize="small")
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set(xlabel="seconds", title="Where the time of a start goes")
    _legend(axes)


def _history(axes: Axes, results: Sequence[BenchResult], theme: Theme) -> None:
    ordered = sorted(results, key=lambda result: result.started)
    series: dict[str, list[int]] = {}
    for place, result in enumerate(ordered):
        series.setdefault(f"{_named(result, results, images=False)}, {result.profile}", []).append(place)
    for number, (name, places) in enumerate(series.items()):
        speeds = [ordered[place].throughput() for place in places]
        axes.errorbar(
            places,
            [fmean(found) for found in speeds],
            yerr=[stdev(found) if len(found) > 1 else 0 for found in speeds],
            color=theme.series[number % len(theme.series)],
            marker=_MARKERS[number % len(_MARKERS)],
            linestyle=_LINES[number % len(_LINES)],
            capsize=3,
            label=name,
        )
    ticks = [f"{result.started:%m-%d %H:%M}\n{result.bound.digest[7:15]}" for result in ordered]
    step = len(ordered) // _TICKS + 1
    axes.set_xticks(range(0, len(ordered), step), ticks[::step], fontsize="small")
    axes.set_ylim(bottom=0)
    axes.set(ylabel="tokens per second", title="History")
    _legend(axes)


_PLOTS: Final[dict[str, tuple[Callable[[BenchResult], bool], Draw]]] = {
    "throughput": (lambda result: len({one.users for one in result.measurements}) > 1, _throughput),
    "latency": (lambda result: bool(result.measurements), _latency),
    "acceptance": (lambda result: pooled_acceptance(result.measurements) is not None, _acceptance),
    "start": (lambda result: any(start.steps for start in result.starts), _starts),
    "history": (lambda result: bool(result.measurements), _history),
}
