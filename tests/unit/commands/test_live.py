"""Watching a build: a live table that fits the terminal, plain lines in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from imagefactory.commands.show.live import LiveDisplay, PlainDisplay, watching
from imagefactory.plan.plan import Layer, WheelLayer, WheelSettings
from imagefactory.store.digests import Digest, Sha256


def layer(number: int) -> Layer:
    return WheelLayer(
        kind="wheel",
        name=f"package-{number}",
        key=Sha256(f"{number:064}"),
        inputs=(),
        settings=WheelSettings(python="3.11", venv="opt/venv"),
        download=1000,
        unpacked=2000,
    )


LAYERS = [layer(number) for number in range(40)]


def terminal(height: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=height, color_system=None)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(display: LiveDisplay, height: int) -> list[str]:
    console = terminal(height)
    console.print(display, height=height)
    return [line.rstrip() for line in text(console).splitlines()]


def test_a_layer_shows_its_state_its_bytes_and_its_rate() -> None:
    display = LiveDisplay()
    display.layers(LAYERS[:2])
    display.state(LAYERS[0].key, "splicing", 1_500_000, 3_000_000)
    display.state(LAYERS[1].key, "cached", 5_000, 5_000)
    lines = shown(display, 20)
    assert "wheel package-0" in lines[1]
    assert "splicing" in lines[1]
    assert "1.5 MB of 3.0 MB" in lines[1]
    assert lines[1].endswith("/s")
    assert "cached" in lines[2]
    assert "5.0 kB" in lines[2]
    assert lines[-1] == "1 of 2 layers are ready"


def test_on_a_small_terminal_what_happens_stays_in_view() -> None:
    display = LiveDisplay()
    display.layers(LAYERS)
    for item in LAYERS[:30]:
        display.state(item.key, "done", 1, 1)
    display.state(LAYERS[35].key, "splicing", 1, 2)
    display.state(LAYERS[39].key, "downloading", 1, 2)
    lines = shown(display, 10)
    assert len(lines) <= 10
    assert any("package-35" in line for line in lines)
    assert any("package-39" in line for line in lines)
    assert "30 of 40 layers are ready" in lines[-1]


def test_a_log_has_one_line_for_each_layer_that_is_ready() -> None:
    console = Console(file=io.StringIO(), width=100)
    display = PlainDisplay(console)
    display.layers(LAYERS[:2])
    for state in ("waiting", "downloading", "splicing", "splicing", "done"):
        display.state(LAYERS[0].key, state, 2000, 2000)
    display.state(LAYERS[1].key, "cached", 10, 10)
    assert text(console).splitlines() == [
        "done     wheel package-0 (2.0 kB)",
        "cached   wheel package-1 (0.0 kB)",
    ]


def test_a_log_speaks_now_and_then_of_what_takes_long() -> None:
    console = Console(file=io.StringIO(), width=100)
    display = PlainDisplay(console, every=0)
    display.layers(LAYERS[:2])
    display.state(LAYERS[0].key, "splicing", 1000, 2000)
    assert "splicing     wheel package-0: 1.0 kB of 2.0 kB" in text(console)


def test_the_console_decides_how_it_is_shown() -> None:
    with watching(terminal(20)) as watch:
        assert isinstance(watch, LiveDisplay)
        watch.layers(LAYERS)
    with watching(Console(file=io.StringIO())) as watch:
        assert isinstance(watch, PlainDisplay)


@pytest.mark.parametrize("height", [3, 5, 24, 80])
def test_the_table_never_runs_over_the_terminal(height: int) -> None:
    display = LiveDisplay()
    display.layers(LAYERS)
    assert len(shown(display, height)) <= max(height, 3)


def test_a_push_is_shown_like_a_build() -> None:
    display = LiveDisplay()
    display.blobs({Digest("sha256:a"): "wheel torch", Digest("sha256:b"): "config"})
    display.state("sha256:a", "uploading", 1_500_000, 3_000_000)
    display.state("sha256:b", "present", 5_000, 5_000)
    lines = shown(display, 20)
    assert "uploading" in lines[1]
    assert lines[1].endswith("/s")
    assert "present" in lines[2]
    assert lines[-1] == "1 of 2 layers are ready"


def test_a_log_says_how_each_blob_got_into_the_registry() -> None:
    console = Console(file=io.StringIO(), width=100)
    display = PlainDisplay(console)
    display.blobs({Digest("sha256:a"): "wheel torch"})
    display.state("sha256:a", "uploading", 5_000, 10_000)
    display.state("sha256:a", "uploaded", 10_000, 10_000)
    assert text(console) == "uploaded wheel torch (10.0 kB)\n"
