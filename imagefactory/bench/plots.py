"""Draws benchmark results as SVG files, in a light and a dark version, readable without colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from imagefactory.bench import drawings
from imagefactory.bench.published_figures import PublishedFigures
from imagefactory.bench.result import BenchResult, pooled_acceptance
from imagefactory.bench.themes import THEMES, Theme
from imagefactory.errors.bench import BenchResultError
from imagefactory.store.atomic import writing

_FEW: Final = 2
_NOBODY: Final = PublishedFigures(sources={}, figures=())
_Kind = tuple[Callable[[BenchResult], bool], drawings.Draw]


def plot(results: Sequence[BenchResult], folder: Path, published: PublishedFigures = _NOBODY) -> list[Path]:
    """Draw every plot that the results have figures for; return the files."""
    written = []
    for name, (has, draw) in _kinds(published).items():
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


def _kinds(published: PublishedFigures) -> dict[str, _Kind]:
    """Return the plots by name, each with what a result needs to be in it."""
    return {
        "throughput": (
            lambda result: len({one.users for one in result.measurements}) > 1,
            drawings.draw_throughput,
        ),
        "latency": (
            lambda result: any(one.first_token for one in result.measurements),
            drawings.draw_latency,
        ),
        "acceptance": (
            lambda result: pooled_acceptance(result.measurements) is not None,
            drawings.draw_acceptance,
        ),
        "start": (lambda result: any(start.steps for start in result.starts), drawings.draw_starts),
        "history": (lambda result: bool(result.measurements), drawings.draw_history),
        "published": (
            lambda result: bool(
                published.about(result.bound.matrix_model)
                and any(not one.depth for one in result.measurements)
            ),
            drawings.draw_beside(published),
        ),
    }


def _write(path: Path, theme: Theme, results: Sequence[BenchResult], draw: drawings.Draw) -> None:
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
        figure = Figure(figsize=drawings.SIZE, layout="constrained")
        draw(figure, results, theme)
        # Without a date, the same results give the same bytes.
        figure.savefig(file, format="svg", metadata={"Date": None})
