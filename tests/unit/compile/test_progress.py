"""The progress of a compile: lines as they arrive from the container, and ninja's steps as a line or a bar."""

from __future__ import annotations

import io

from rich.console import Console

from imagefactory.commands.show.live import PlainCompile, watching_compile
from imagefactory.compile.container import lines


def test_lines_may_span_chunks() -> None:
    text = "[1/2] one\n[2/2] zwölf\nlast".encode()
    for size in range(1, len(text)):
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        assert list(lines(chunks)) == ["[1/2] one", "[2/2] zwölf", "last"]


def test_steps_are_counted_from_time_to_time_and_at_the_end() -> None:
    said = io.StringIO()
    display = PlainCompile(Console(file=said), every=3600)
    for done in (1, 2, 3):
        display.step(done, 3)
    assert said.getvalue() == "3 of 3 objects\n"
    PlainCompile(Console(file=said), every=0).step(1, 9)
    assert said.getvalue().endswith("1 of 9 objects\n")


def test_terminal_shows_a_bar() -> None:
    said = io.StringIO()
    with watching_compile(Console(file=said, force_terminal=True, width=80)) as display:
        display.step(12, 345)
    assert "12/345" in said.getvalue()
