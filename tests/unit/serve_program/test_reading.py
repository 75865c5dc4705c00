"""Tests the meter of what a server reads from the disk while it loads its weights."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.serve.program import processes, watch
from images.serve.program.reading import ReadMeter
from images.serve.program.servers.vllm import SERVER as VLLM
from images.serve.program.timeline import Moments

SERVER, ENGINE, OTHER = 4_000_001, 4_000_002, 4_000_003


@pytest.fixture(autouse=True)
def _server_and_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "tree", lambda *_, **__: dict.fromkeys((SERVER, ENGINE)))


def seen(counters: Path, process: int, read: int) -> None:
    (counters / str(process)).mkdir(exist_ok=True)
    (counters / str(process) / "io").write_text(f"rchar: 7\nread_bytes: {read}\nwrite_bytes: 9\n")


def test_the_speed_is_what_the_server_and_its_children_read_while_the_weights_were_loaded(tmp_path: Path) -> None:
    meter = ReadMeter(SERVER, str(tmp_path))
    seen(tmp_path, SERVER, 2_000_000_000)  # its libraries
    seen(tmp_path, OTHER, 10**12)
    meter.sample(10.0)
    seen(tmp_path, ENGINE, 3_000_000_000)
    meter.sample(50.0)
    seen(tmp_path, ENGINE, 6_000_000_000)
    meter.sample(110.0)
    (tmp_path / str(ENGINE) / "io").unlink()
    meter.sample(110.5)
    assert meter.megabytes_per_second(10.0, 110.0) == 60
    assert meter.ended.is_set()


def test_no_speed_is_told_from_the_page_cache_or_without_both_moments(tmp_path: Path) -> None:
    meter = ReadMeter(SERVER, str(tmp_path))
    seen(tmp_path, SERVER, 4_000_000_000)
    meter.sample(5.0)
    assert meter.megabytes_per_second(1.0, 10.0) is None
    seen(tmp_path, SERVER, 6_000_000_000)
    meter.sample(6.0)
    assert meter.megabytes_per_second(1.0, 10.0) == 666
    assert meter.megabytes_per_second(None, 10.0) is meter.megabytes_per_second(1.0, None) is None


@pytest.mark.parametrize(("read", "unified", "warns"), [(11, True, True), (400, True, False), (11, False, False)])
def test_the_companion_warns_of_a_spark_whose_weights_came_slowly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], read: int, *, unified: bool, warns: bool
) -> None:
    meter = ReadMeter(SERVER)
    meter.samples = [(5.0, 10**9), (110.0, 10**9 + read * 10**9)]
    (tmp_path / "choices").write_text("10.000 Starting to load model\n130.000 init engine (profile) took 20.00 s\n")
    task: Any = SimpleNamespace(server=VLLM, choices=tmp_path / "choices", drafting=False, rounds=0, kernels=())
    task.disk, task.unified = meter, unified
    watch._tell_start(task, Moments(0.0, 1.0, ready=140.0))
    printed = capsys.readouterr()
    line = "WARNING: the weights came from the disk at 110 MB/s: a Spark's own disk gives 5,600 or more. Keep models on"
    assert (line in printed.out + printed.err) == warns
