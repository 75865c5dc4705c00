"""The progress of a compile, read from ninja's output."""

from __future__ import annotations

import itertools

import pytest

from imagefactory.commands.show.live import compile_progress
from imagefactory.compile.container import lines
from imagefactory.compile.ninja_progress import CompileProgress, NinjaReader, duration


def reader(*moments: float) -> NinjaReader:
    times = itertools.chain(moments, itertools.repeat(moments[-1]))
    return NinjaReader(clock=lambda: next(times))


def test_other_lines_are_ignored() -> None:
    assert reader(0).read("-- Configuring done") is None
    assert reader(0).read("warning: [1/2 of the buffer] is unused") is None


def test_objects_and_time_left_are_read() -> None:
    ninja = reader(100, 110, 130)
    ninja.read("-- Build files have been written")
    first, third = ninja.read("[1/9] Building CUDA object a.o"), ninja.read("[3/9] Building CUDA object c.o")
    assert first is not None
    assert third is not None
    assert compile_progress(first) == "1 of 9 objects, 10 s so far, about 1 min left"
    assert compile_progress(third) == "3 of 9 objects, 30 s so far, about 1 min left"


def test_objects_of_an_earlier_run_do_not_affect_the_estimate() -> None:
    # 90 of 100 were there; the ten that are left took ten seconds each so far.
    progress = CompileProgress(done=95, total=100, elapsed=50, here=5)
    assert progress.left == pytest.approx(50)


def test_second_run_of_ninja_counts_from_the_beginning() -> None:
    ninja = reader(0, 5, 10, 100, 110)
    for line in ("checking", "[1/2] a", "[2/2] b", "checked"):
        ninja.read(line)
    progress = ninja.read("[1/50] c")
    assert progress is not None
    assert (progress.here, ninja.objects, progress.elapsed) == (1, 3, 10)


def test_no_estimate_before_anything_is_done() -> None:
    assert CompileProgress(0, 10, 0, 0).left is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(12, "12 s"), (59.9, "60 s"), (600, "10 min"), (7260, "2 h 1 min")]
)
def test_duration_is_formatted_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_lines_may_span_chunks() -> None:
    text = "[1/2] one\n[2/2] zwölf\nlast".encode()
    for size in range(1, len(text)):
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        assert list(lines(chunks)) == ["[1/2] one", "[2/2] zwölf", "last"]
