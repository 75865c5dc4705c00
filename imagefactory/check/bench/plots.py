"""Draws benchmark results as SVG files, in a light and a dark version, readable without colour and on a phone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from imagefactory.check.bench.result import (
    BenchResult,
    known_percentiles,
    pooled,
    pooled_acceptance,
)
from imagefactory.errors import InputError
from imagefactory.store.atomic import writing
from imagefactory.store.progress import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS: Final = "osD^vP*X"
_LINES: Final = ("-", "--", ":", "-.")
_HATCHES: Final = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
_WIDTH: Final = 5.2
"""Inches: a phone shows them in 360 pixels, with letters of 9."""
_WIDEST: Final = 62  # characters of a line that fit
_SMALL: Final = 74  # smaller ones
SPREAD: Final = "bars: standard deviation of the repeats"
POINTS: Final = "bars: means; points: repeats"
_MOST: Final = 6  # series that can be told apart
_VALUES: Final = 3  # series whose values stand below their bars
_LETTER: Final = 4.8  # points: the width of a small letter
STEPS: Final = ("checks", "imports", "engine", "weights", "compile", "graphs", "server", "kernels", "warm-up")
"""The steps of a start in their order, each with a colour of its own."""


class Theme(NamedTuple):
    """The colours of a version."""

    name: str
    paper: str
    ink: str
    grid: str
    series: tuple[str, ...]
    """Okabe and Ito's colours, which people with any colour vision can tell apart, and their lightness differs."""
    steps: tuple[str, ...]
    """Paul Tol's muted ones, of which there are more; brighter on a dark ground."""


THEMES: Final = (
    Theme(
        *("light", "#ffffff", "#1f2328", "#d0d7de"),
        ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
        ("#ddcc77", "#88ccee", "#44aa99", "#117733", "#cc6677", "#999933", "#332288", "#882255", "#aa4499"),
    ),
    Theme(
        *("dark", "#0d1117", "#e6edf3", "#30363d"),
        ("#56b4e9", "#e69f00", "#4dd2a5", "#e3a6c8", "#7aa7d9", "#f0e442"),
        ("#ddcc77", "#88ccee", "#44aa99", "#3fa35a", "#cc6677", "#b5b548", "#8d7fe0", "#c2528b", "#d98cd0"),
    ),
)


class _Panel(Protocol):
    """One diagram of a plot."""

    @property
    def places(self) -> list[str]: ...
    @property
    def size(self) -> tuple[float, float]:
        """Width and height, in inches."""
        ...

    def draw(self, axes: Axes, theme: Theme, *, labelled: bool) -> None: ...


@dataclass(frozen=True)
class _Series:
    """Series over the same places: bars with the repeats as points, or lines with their standard deviation."""

    unit: str
    series: Mapping[str, Mapping[str, Sequence[float]]]  # label -> place -> values
    kind: str = "bars"
    about: str = ""  # what the places are

    @property
    def places(self) -> list[str]:
        return list(dict.fromkeys(place for values in self.series.values() for place in values))

    @property
    def size(self) -> tuple[float, float]:
        return max(_WIDTH, 0.7 * len(self.places)), 2.6

    def draw(self, axes: Axes, theme: Theme, *, labelled: bool) -> None:
        places = self.places
        width = 0.8 / len(self.series)  # the rest parts a place from the next
        for number, (label, values) in enumerate(self.series.items()):
            means = {place: fmean(values[place]) for place in places if values.get(place)}
            at = [float(places.index(place)) for place in means]
            colour = theme.series[number % len(theme.series)]
            named = label if labelled else ""
            if self.kind == "lines":
                spread = [stdev(values[place]) if len(values[place]) > 1 else 0 for place in means]
                look: Any = {"marker": _MARKERS[number % 8], "linestyle": _LINES[number % 4], "capsize": 3}
                axes.errorbar(at, list(means.values()), yerr=spread, color=colour, label=named, **look)
                continue
            # The bars of a place stand centred on it.
            moved = [place + (number - (len(self.series) - 1) / 2) * width for place in at]
            axes.bar(moved, list(means.values()), width, color=colour, hatch=_HATCHES[number % 8], label=named)
            self._draw_repeats(axes, theme, dict(zip(moved, means, strict=True)), values)
        axes.set_xticks(range(len(places)), [self._tick(place) for place in places], fontsize="small")
        axes.set_xlim(-0.5, len(places) - 0.5)
        axes.set_ylim(bottom=0)
        axes.set(xlabel=self.about, ylabel=self.unit)
        axes.grid(color=theme.grid, linewidth=0.6, axis="y")

    def _draw_repeats(
        self, axes: Axes, theme: Theme, places: Mapping[float, str], values: Mapping[str, Sequence[float]]
    ) -> None:
        for x, place in places.items():
            repeats = values[place] if len(values[place]) > 1 else []
            axes.scatter([x] * len(repeats), repeats, s=12, facecolor=theme.paper, edgecolor=theme.ink, zorder=3)

    def _tick(self, place: str) -> str:
        """Return the name of a place with the means of its few bars below, in the order of the series."""
        values = [series[place] for series in self.series.values() if series.get(place)]
        if self.kind == "lines" or len(self.series) > _VALUES:
            return place
        means = [fmean(repeats) for repeats in values]
        return "\n".join([place, *(f"{mean:.1f}" if mean < 100 else f"{mean:.0f}" for mean in means)])  # noqa: PLR2004


@dataclass(frozen=True)
class _Starts:
    """Starts below each other, each a bar of its steps in their order."""

    starts: Mapping[str, Mapping[str, float]]  # about -> step -> seconds

    @property
    def places(self) -> list[str]:
        return list(self.starts)

    @property
    def size(self) -> tuple[float, float]:
        return _WIDTH, 0.3 + 1.25 * len(self.starts)

    def draw(self, axes: Axes, theme: Theme, *, labelled: bool) -> None:
        longest = max(sum(steps.values()) for steps in self.starts.values()) or 1
        shown = {step: None for steps in self.starts.values() for step in steps}
        order = [step for step in STEPS if step in shown] + [step for step in shown if step not in STEPS]
        colours = {step: theme.steps[STEPS.index(step)] if step in STEPS else theme.grid for step in order}
        for number, (about, steps) in enumerate(self.starts.items()):
            left, narrow = 0.0, []
            for step in (step for step in order if step in steps):
                seconds = steps[step]
                look: Any = {"color": colours[step], "edgecolor": theme.paper, "linewidth": 0.6}
                axes.barh(-number, seconds, 0.4, left, label=step if labelled and step in shown else "", **look)
                shown.pop(step, None)  # the legend names it once
                room = seconds / longest * (_WIDTH - 1.2) * 72  # points
                if room > _LETTER * max(len(step), 4) + 4:
                    inside: Any = {"ha": "center", "va": "center", "fontsize": "small"}
                    axes.text(left + seconds / 2, -number, f"{step}\n{seconds:.1f}", color=_on(colours[step]), **inside)
                else:
                    narrow.append(f"{step} {seconds:.1f}")
                left += seconds
            axes.text(left, -number, f" {left:.1f} s", va="center")
            beside: Any = {"fontsize": "small", "in_layout": False}  # else long lines would make the bars shorter
            axes.text(0, 0.24 - number, fill(about, _SMALL), va="bottom", **beside)
            axes.text(0, -0.24 - number, fill(", ".join(narrow), _SMALL), va="top", **beside)
        axes.set_xlim(0, longest * 1.15)  # with room for the sum
        axes.set_ylim(0.35 - len(self.starts), 0.6)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set(xlabel="seconds until the warm-up is done")


def _on(colour: str) -> str:
    """Return black or white, whichever can be read on a colour."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    # The weights of ITU-R BT.601, by which eyes see brightness.
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else "#ffffff"  # noqa: PLR2004 - half of 256


def plot(results: Sequence[BenchResult], folder: Path) -> list[Path]:
    """Draw every plot that the results have figures for; return the files."""
    ordered = sorted(results, key=lambda result: result.started)
    written = []
    for name, title, panels in _plots(ordered):
        shown = [panel for panel in panels if panel.places]
        for theme in THEMES if shown else ():
            written.append(folder / f"{name}-{theme.name}.svg")
            _write(written[-1], theme, title, shown)
    if not written:
        raise InputError(
            "bad-bench-result",
            "There is nothing to plot.",
            where=folder,
            why="The results have neither measurements nor starts.",
            fix="Measure first: `./inv bench`.",
        )
    return written


def _plots(results: Sequence[BenchResult]) -> Iterator[tuple[str, str, Sequence[_Panel]]]:
    measured = [result for result in results if result.measurements]
    by_users = {count: [result for result in measured if (len(result.users) > 1) is count] for count in (False, True)}

    chosen, title = _newest(by_users[False], "Throughput")
    bars = {_named(result, chosen): dict(_speeds(result)) for result in chosen}
    yield "throughput", title, [_Series("tokens per second", bars, about=POINTS)]

    chosen, title = _newest(by_users[True], "Throughput by users")
    counts = sorted({users for result in chosen for users in result.users})
    lines = {_named(result, chosen): {str(users): result.throughput(users) for users in counts} for result in chosen}
    yield "users", title, [_Series("tokens per second, all users", lines, "lines", f"users at once; {SPREAD}")]

    chosen, title = _newest(measured, "Latency", most=1)
    yield "latency", title, list(_latency(chosen[-1])) if chosen else []

    chosen, title = _newest([result for result in measured if pooled_acceptance(result.measurements)], "Acceptance")
    lengths = {_named(result, chosen): dict(_lengths(result)) for result in chosen}
    yield "acceptance", title, [_Series("tokens per step", lengths)]

    chosen, title = _newest([result for result in results if any(start.steps for start in result.starts)], "Starts")
    yield "start", title, [_Starts(dict(_starts(chosen)))]

    # The figures of several profiles cannot be compared.
    alike = [result for result in measured if result.profile == measured[-1].profile]
    history: dict[str, dict[str, list[float]]] = {}
    for result in alike if len(alike) > 1 else ():
        place = f"{result.started:%Y-%m-%d}\n{result.started:%H:%M}\n{result.bound.digest[7:15]}"
        history.setdefault(_named(result, alike, images=False), {})[place] = result.throughput()
    title = f"{_title('History', alike)}, profile {alike[-1].profile}" if alike else ""
    yield "history", title, [_Series("tokens per second", history, "lines", SPREAD)]


def _speeds(result: BenchResult) -> Iterator[tuple[str, list[float]]]:
    """Yield the tokens per second of every repeat: of each kind of text, and over all of them."""
    cells = result.cells()
    for cell, measurements in cells.items():
        yield _place(cell, result), [pooled([measurement]) for measurement in measurements]
    if len(cells) > 1:
        yield "all", result.throughput()


def _latency(result: BenchResult) -> Iterator[_Series]:
    """Yield percentiles of the time to the first token, and of the time per token; only those that can be known."""
    for unit, field in (("to the first token, ms", "first_token"), ("per further token, ms", "per_token")):
        shares: dict[str, dict[str, list[float]]] = {}
        for cell, measurements in result.cells().items():
            spreads = [getattr(measurement, field) for measurement in measurements]
            for share in known_percentiles(measurements):
                shares.setdefault(share, {})[_place(cell, result)] = [getattr(spread, share) for spread in spreads]
        yield _Series(f"p50 {unit}" if len(shares) == 1 else unit, shares, about=POINTS)


def _place(cell: tuple[str, int, int], result: BenchResult) -> str:
    """Name a cell by what tells it from the others; the title has the rest."""
    kind, users, depth = cell
    parts = [kind, *([count(users, "user")] if len(result.users) > 1 else []), *([f"{depth} deep"] if depth else [])]
    return "\n".join(parts)


def _lengths(result: BenchResult) -> Iterator[tuple[str, list[float]]]:
    for kind in dict.fromkeys(measurement.kind for measurement in result.measurements):
        acceptance = pooled_acceptance(measurement for measurement in result.measurements if measurement.kind == kind)
        if acceptance:
            yield kind, [acceptance.length]


def _starts(results: Sequence[BenchResult]) -> Iterator[tuple[str, dict[str, float]]]:
    for result in results:
        name = _named(result, results) if len(results) > 1 else ""
        for start in result.starts:
            built = [f"{module} compiled in {seconds:.0f} s" for module, seconds in start.compiled.items()]
            about = "; ".join(filter(None, [name, f"{start.cache} cache", start.kernels, *built]))
            # `ready` is the sum of the steps, before the warm-up in old images.
            steps = {step: seconds for step, seconds in start.steps.items() if step != "ready"}
            yield about, steps


def _write(path: Path, theme: Theme, title: str, panels: Sequence[_Panel]) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - large, and only plots need it
    from matplotlib.figure import Figure  # noqa: PLC0415

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: Any = {
        "svg.hashsalt": "imagefactory",  # ids would be random
        "svg.fonttype": "none",  # text stays text, not outlines
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        **dict.fromkeys(inked, theme.ink),
        **dict.fromkeys(("axes.facecolor", "figure.facecolor", "hatch.color"), theme.paper),
    }
    with mpl.rc_context(style), writing(path) as file:
        widths, heights = zip(*(panel.size for panel in panels), strict=True)
        figure = Figure(figsize=(max(widths), 1.5 + sum(heights)))  # the rest is for title and legend
        figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.15)
        figure.suptitle("\n".join(fill(line, _WIDEST) for line in title.splitlines()), fontsize="medium")
        for number, panel in enumerate(panels):
            axes: Axes = figure.add_subplot(len(panels), 1, number + 1)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_axisbelow(True)
            panel.draw(axes, theme, labelled=number == 0)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if len(labels) > 1:  # the title names a single one
            columns = min(len(labels), max(1, _WIDEST // (len(max(labels, key=len)) + 6)))
            # Matplotlib fills column after column; people read rows.
            order = [index for column in range(columns) for index in range(column, len(labels), columns)]
            place: Any = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": "small"}
            figure.legend([handles[index] for index in order], [labels[index] for index in order], **place)
        # Without a date, the same results give the same bytes.
        figure.savefig(file, format="svg", metadata={"Date": None})


def _newest(results: Sequence[BenchResult], what: str, most: int = _MOST) -> tuple[list[BenchResult], str]:
    """Return the newest result of each server with each settings, and a title that says if some are left out."""
    newest = {
        (_target(result), result.bound.address, result.bound.digest, str(result.bound.settings), result.profile): result
        for result in results
    }
    chosen = sorted(newest.values(), key=lambda result: result.started)[-most:]
    title = _title(what, chosen)
    if len(chosen) == 1 and not chosen[0].complete:
        title += ", incomplete"
    if len(chosen) < len(results):
        title += f" (the newest {len(chosen)} of {len(results)} results)"
    return chosen, "\n".join(filter(None, [title, ", ".join(_circumstances(chosen, what))]))


def _circumstances(results: Sequence[BenchResult], what: str) -> Iterator[str]:
    """Yield what all figures of a plot have in common: users, requests behind each figure, and the machine's load."""
    measurements = [measurement for result in results for measurement in result.measurements]
    if measurements and what != "Starts":
        users = {measurement.users for measurement in measurements}
        if len(users) == 1:
            yield count(users.pop(), "user")
        counts = {sum(run.requests for run in cell) for result in results for cell in result.cells().values()}
        yield f"n={min(counts)}" + (f" to {max(counts)}" if len(counts) > 1 else "")
    loads = [result.machine.load for result in results if result.machine.load is not None]
    if loads:
        yield f"load before: {max(loads):.1f} on {results[-1].machine.cpus} CPUs"


def _title(what: str, results: Sequence[BenchResult]) -> str:
    names = {_target(result) for result in results}
    return f"{what}: {names.pop()}" if len(names) == 1 else what


def _target(result: BenchResult) -> str:
    return result.bound.target or result.bound.model


def _named(result: BenchResult, results: Sequence[BenchResult], *, images: bool = True) -> str:
    """Name a result by what tells it from the others."""
    bound = result.bound
    settings = " ".join(f"{name}={value}" for name, value in bound.settings.items())
    parts = [_target(result)] if len({_target(other) for other in results}) > 1 else []
    if len({other.bound.address for other in results}) > 1:
        parts.append(bound.address)
    if images and len({other.bound.digest for other in results}) > 1:
        parts.append(f"image {bound.digest[7:15]}")
    if len({str(other.bound.settings) for other in results}) > 1:
        parts.append(settings or "defaults")
    if len({other.profile for other in results}) > 1:
        parts.append(f"profile {result.profile}")
    if not result.complete:
        parts.append("incomplete")
    return shorten(", ".join(parts) or _target(result), _WIDEST, placeholder=" …")
