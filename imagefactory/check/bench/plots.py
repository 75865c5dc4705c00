"""Draws benchmark results as SVG files, in a light and a dark version, readable without colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from imagefactory.check.bench.result import BenchResult, mean_spread, pooled_acceptance, users_text
from imagefactory.errors import InputError
from imagefactory.store.atomic import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS: Final = "osD^vP*X"
_LINES: Final = ("-", "--", ":", "-.")
_HATCHES: Final = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
_WIDEST: Final = 90  # characters of a label
SPREAD: Final = "bars: standard deviation of the repeats"
_MOST: Final = 6  # series that can be told apart


class Theme(NamedTuple):
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


@dataclass(frozen=True)
class _Panel:
    """Series over the same places; a place with several values is drawn as their mean and standard deviation."""

    unit: str
    series: Mapping[str, Mapping[str, Sequence[float]]]  # label -> place -> values
    kind: str = "bars"  # bars beside each other, bars that are stacked, or lines
    about: str = ""  # what the places are

    @property
    def places(self) -> list[str]:
        return list(dict.fromkeys(place for values in self.series.values() for place in values))

    def draw(self, axes: Axes, theme: Theme, *, labelled: bool) -> None:
        places = self.places
        width = 0.8 / (1 if self.kind == "stacked" else len(self.series))  # the rest parts a place from the next
        tops = dict.fromkeys(places, 0.0)
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
            look = {"color": colour, "hatch": _HATCHES[number % 8], "label": named}
            if self.kind == "stacked":
                axes.bar(at, list(means.values()), width, [tops[place] for place in means], **look)
                tops |= {place: tops[place] + value for place, value in means.items()}
            else:
                # The bars of a place stand centred on it.
                moved = [place + (number - (len(self.series) - 1) / 2) * width for place in at]
                axes.bar(moved, list(means.values()), width, **look)
        axes.set_xticks(range(len(places)), places, fontsize="small")
        axes.set_xlim(-0.5, len(places) - 0.5)
        axes.set_ylim(bottom=0)
        axes.set(xlabel=self.about, ylabel=self.unit)


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


def _plots(results: Sequence[BenchResult]) -> Iterator[tuple[str, str, list[_Panel]]]:
    measured = [result for result in results if result.measurements]
    many = [result for result in measured if len({measurement.users for measurement in result.measurements}) > 1]
    chosen, title = _newest(many, "Throughput")
    counts = sorted({measurement.users for result in chosen for measurement in result.measurements})
    lines = {_named(result, chosen): {str(users): result.throughput(users) for users in counts} for result in chosen}
    yield (
        "throughput",
        title,
        [_Panel("tokens per second, all users", lines, "lines", f"users at once; {SPREAD}")],
    )

    chosen, title = _newest(measured)
    yield "latency", title, list(_latency(chosen[-1])) if chosen else []

    chosen, title = _newest([result for result in measured if pooled_acceptance(result.measurements)], "Acceptance")
    lengths = {_named(result, chosen): dict(_lengths(result)) for result in chosen}
    yield "acceptance", title, [_Panel("tokens per step", lengths)]

    chosen, title = _newest([result for result in results if any(start.steps for start in result.starts)], "Starts")
    steps: dict[str, dict[str, list[float]]] = {}
    for result in chosen:
        name = _named(result, chosen).replace(", ", "\n") if len(chosen) > 1 else ""
        for start in result.starts:
            built = [f"{module} compiled in {seconds:.0f} s" for module, seconds in start.compiled.items()]
            place = "\n".join(filter(None, [name, f"{start.cache} cache", start.kernels, *built]))
            for step, seconds in start.steps.items():
                if step != "ready":  # that is the sum of the steps, before the warm-up in old images
                    steps.setdefault(step, {})[place] = [seconds]
    yield "start", title, [_Panel("seconds until the warm-up is done", steps, "stacked")]

    # The figures of several profiles cannot be compared.
    alike = [result for result in measured if result.profile == measured[-1].profile]
    history: dict[str, dict[str, list[float]]] = {}
    for result in alike if len(alike) > 1 else ():
        place = f"{result.started:%Y-%m-%d}\n{result.started:%H:%M}\n{result.bound.digest[7:15]}"
        history.setdefault(_named(result, alike, images=False), {})[place] = result.throughput()
    title = f"{_title('History', alike)}, profile {alike[-1].profile}" if alike else ""
    yield "history", title, [_Panel("tokens per second", history, "lines", SPREAD)]


def _latency(result: BenchResult) -> Iterator[_Panel]:
    """Yield percentiles of the time to the first token, and of the time per token."""
    for unit, field in (("to the first token, ms", "first_token"), ("per further token, ms", "per_token")):
        shares: dict[str, dict[str, list[float]]] = {"p50": {}, "p90": {}, "p99": {}}
        for (kind, users, depth), measurements in result.cells().items():
            place = f"{kind}\n{users_text(users)}" + (f"\n{depth} deep" if depth else "")
            spread = mean_spread(getattr(measurement, field) for measurement in measurements)
            for share, places in shares.items():
                places[place] = [getattr(spread, share)]
        yield _Panel(unit, shares)


def _lengths(result: BenchResult) -> Iterator[tuple[str, list[float]]]:
    for kind in dict.fromkeys(measurement.kind for measurement in result.measurements):
        acceptance = pooled_acceptance(measurement for measurement in result.measurements if measurement.kind == kind)
        if acceptance:
            yield kind, [acceptance.length]


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
        width = max(8.0, 0.7 * len(panels[0].places))
        # Inches: title and legend take 1.9, each panel 2.6.
        figure = Figure(figsize=(width, 1.9 + 2.6 * len(panels)))
        figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.15)
        figure.suptitle(title, fontsize="medium")
        for number, panel in enumerate(panels):
            axes: Axes = figure.add_subplot(len(panels), 1, number + 1)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color=theme.grid, linewidth=0.6, axis="y")
            axes.set_axisbelow(True)
            panel.draw(axes, theme, labelled=number == 0)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if len(labels) > 1:  # the title names a single one
            columns = 1 if len(max(labels, key=len)) > 30 else 4  # noqa: PLR2004 - what fits side by side
            place: Any = {"loc": "outside lower center", "ncols": min(columns, len(labels))}
            figure.legend(handles, labels, frameon=False, fontsize="small", **place)
        # Without a date, the same results give the same bytes.
        figure.savefig(file, format="svg", metadata={"Date": None})


def _newest(results: Sequence[BenchResult], what: str = "Latency") -> tuple[list[BenchResult], str]:
    """Return the newest result of each image with each settings, and a title that says if some are left out."""
    newest = {
        (_target(result), result.bound.digest, str(result.bound.settings), result.profile): result for result in results
    }
    most = 1 if what == "Latency" else _MOST
    chosen = sorted(newest.values(), key=lambda result: result.started)[-most:]
    title = _title(what, chosen)
    if len(chosen) == 1 and not chosen[0].complete:
        title += ", incomplete"
    if len(chosen) < len(results):
        title += f" (the newest {len(chosen)} of {len(results)} results)"
    return chosen, title


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
    if images and len({other.bound.digest for other in results}) > 1:
        parts.append(f"image {bound.digest[7:15]}")
    if len({str(other.bound.settings) for other in results}) > 1:
        parts.append(settings or "defaults")
    if len({other.profile for other in results}) > 1:
        parts.append(f"profile {result.profile}")
    if not result.complete:
        parts.append("incomplete")
    return shorten(", ".join(parts) or _target(result), _WIDEST, placeholder=" …")
