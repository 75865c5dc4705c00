"""Plots: every picture in a light and a dark version, the same bytes for the same results."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from imagefactory.bench.plots import THEMES, plot
from imagefactory.bench.result import BenchResult
from imagefactory.errors.bench import BenchResultError
from tests.fixtures.benchmarks import at_speed, drafting, result

NAMES = ("throughput", "latency", "acceptance", "start", "history")


def everything(speed: float = 64) -> BenchResult:
    """Return a result with figures for every plot."""
    ones = tuple(
        at_speed(speed * users, repeat=repeat, users=users, kind="mixed", acceptance=drafting(users))
        for repeat in (1, 2)
        for users in (1, 4)
    )
    start = {"cache": "cold", "seconds": 9, "steps": {"imports": 6.0, "weights": 3.0, "ready": 9.0}}
    return result(measurements=ones, starts=(start,))


def test_every_plot_is_drawn_light_and_dark(tmp_path: Path) -> None:
    files = plot([everything(), everything(128)], tmp_path)
    assert [file.name for file in files] == [f"{name}-{theme.name}.svg" for name in NAMES for theme in THEMES]
    for file in files:
        text = file.read_text("utf-8")
        ET.fromstring(text)  # noqa: S314 - our own file
        paper = next(theme.paper for theme in THEMES if theme.name in file.stem)
        assert paper in text
    texts = {file.stem: file.read_text("utf-8") for file in files}
    assert "users at once" in texts["throughput-light"]
    assert "tokens per step" in texts["acceptance-dark"]
    assert "imports" in texts["start-light"]


def test_plots_are_repeatable(tmp_path: Path) -> None:
    first, second = (plot([everything()], tmp_path / name) for name in ("a", "b"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_series_differ_in_more_than_colour(tmp_path: Path) -> None:
    plot([everything(), everything(128)], tmp_path)
    text = (tmp_path / "throughput-light.svg").read_text("utf-8")
    assert "stroke-dasharray" in text


def test_only_what_was_measured_is_drawn(tmp_path: Path) -> None:
    assert {file.stem for file in plot([result()], tmp_path)} == {"latency-light", "latency-dark"}
    with pytest.raises(BenchResultError, match="nothing to plot"):
        plot([result(measurements=())], tmp_path)
