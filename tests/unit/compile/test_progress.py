"""The progress of a compile: lines as they arrive from the container, and ninja's steps as a count."""

import io

from rich.console import Console

from imagefactory.cli.show.live import PlainDisplay, watching
from imagefactory.compile.container import lines


def test_lines_may_span_chunks() -> None:
    text = "[1/2] one\n[2/2] zwölf\nlast".encode()
    for size in range(1, len(text)):
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        assert list(lines(chunks)) == ["[1/2] one", "[2/2] zwölf", "last"]


def test_steps_are_counted_from_time_to_time_and_at_the_end_or_in_place_on_a_terminal() -> None:
    said = io.StringIO()
    display = PlainDisplay(Console(file=said), every=3600)
    for done in (1, 2, 3):
        display.step(done, 3)
    assert said.getvalue() == "3 of 3 objects\n"
    PlainDisplay(Console(file=said), every=0).step(1, 9)
    assert said.getvalue().endswith("1 of 9 objects\n")
    said = io.StringIO()
    with watching(Console(file=said, force_terminal=True, width=80)) as live:
        live.step(12, 345)
    assert "12 of 345 objects" in said.getvalue()
