"""The number of compilers at once, too little memory or disk space, and the progress of a compile."""

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from imagefactory.cli.show.live import Display, watching
from imagefactory.compile.container import BuildMachine, jobs_for, lines
from imagefactory.compile.settings import Cost
from tests.fixtures.failures import raises

COST = Cost(job_gb=5, disk_gb=40)


@pytest.mark.parametrize(
    ("cores", "memory", "asked", "jobs"),
    [(2, 24, 0, 2), (64, 24, 0, 4), (20, 119, 0, 20), (1, 500, 0, 1), (8, 5.0, 0, 1), (2, 24, 4, 4)],
)
def test_jobs_depend_on_cores_memory_and_the_request(cores: int, memory: float, asked: int, jobs: int) -> None:
    assert jobs_for(BuildMachine(cores, memory), COST, asked) == jobs


def test_more_compilers_than_fit_into_memory_are_refused() -> None:
    with raises("no-room") as caught:
        jobs_for(BuildMachine(64, 24), COST, requested=8)
    assert "24.0 GB are available; 8 x 5 GB are needed." in caught.value.why
    assert "--jobs 4" in caught.value.fix
    with raises("no-room", match="not enough memory for 1 compiler") as caught:
        jobs_for(BuildMachine(8, 3.5), COST)
    assert "3.5 GB" in caught.value.why


def test_free_space_is_known_before_the_folder_exists(tmp_path: Path) -> None:
    free = BuildMachine.this().free_gb(tmp_path / "not" / "yet")
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free / 1e9, abs=1)


def test_lines_may_span_chunks() -> None:
    text = "[1/2] one\n[2/2] zwölf\nlast".encode()
    for size in range(1, len(text)):
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        assert list(lines(chunks)) == ["[1/2] one", "[2/2] zwölf", "last"]


def test_steps_are_counted_from_time_to_time_and_at_the_end_or_in_place_on_a_terminal() -> None:
    said = io.StringIO()
    display = Display(Console(file=said), every=3600)
    for done in (1, 2, 3):
        display.step(done, 3)
    assert said.getvalue() == "3 of 3 objects\n"
    Display(Console(file=said), every=0).step(1, 9)
    assert said.getvalue().endswith("1 of 9 objects\n")
    said = io.StringIO()
    with watching(Console(file=said, force_terminal=True, width=80)) as live:
        live.step(12, 345)
    assert "12 of 345 objects" in said.getvalue()
