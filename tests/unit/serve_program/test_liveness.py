"""The companion tells a stuck server from one that works, waits or compiles, and sees the host's memory run out."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from images.serve.program import ahead, liveness, private_files, readings, state, watch
from images.serve.program.liveness import IDLE, PATIENCE, QUIET, HangDetector
from images.serve.program.servers.sglang import SERVER as SGLANG
from images.serve.program.servers.vllm import SERVER as VLLM
from tests.fixtures.checkouts import REPOSITORY


def test_a_server_that_does_not_move_while_somebody_waits_is_asked_and_then_stuck() -> None:
    seen = HangDetector(0)
    seen.see(1, 100)
    assert not seen.asks(QUIET, waiting=True)
    assert seen.asks(1 + QUIET, waiting=True)
    assert not seen.asks(2 + QUIET, waiting=True), "one request at a time"
    assert not seen.stuck(QUIET + PATIENCE)
    assert seen.stuck(1 + QUIET + PATIENCE)
    seen.see(200, 101)
    assert not seen.stuck(200), "it moves again"


@pytest.mark.parametrize("how", ["work", "a step of a minute", "an answer or a compiler"])
def test_whatever_moves_is_not_stuck(how: str) -> None:
    """A long prefill works step by step, however long the request for a token waits behind it."""
    seen, asked = HangDetector(0), 0
    for now in range(0, 10_000, 5):
        work = {"work": now, "a step of a minute": now // 60 * 8192}.get(how)
        seen.see(now, work, alive=work is None)
        asked += seen.asks(now, waiting=True)
        assert not seen.stuck(now)
    assert (asked > 100) is (how == "a step of a minute")


def test_an_idle_server_is_asked_rarely_and_one_without_metrics_as_if_somebody_waited() -> None:
    seen = HangDetector(0)
    seen.see(0, 7)
    asked = []
    for now in range(0, 3000, 5):
        if seen.asks(now, waiting=False):
            asked.append(now)
            seen.see(now, None, alive=True)
    assert asked[:3] == [IDLE, 2 * IDLE, 3 * IDLE]


def test_metrics_tell_work_and_requests() -> None:
    text = (
        b'vllm:iteration_tokens_total_sum{engine="0"} 1.5e+03\nvllm:iteration_tokens_total_bucket{le="8"} 9.0\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 2.5e-01\nvllm:num_requests_running{engine="0"} 2.0\n'
        b'vllm:num_requests_waiting{engine="0"} 1.0\nvllm:num_requests_waiting_by_reason{reason="x"} 5.0\n'
    )
    assert VLLM.work(text) == ((1500, 0.25), 3)
    text = (
        b'sglang:realtime_tokens_total{mode="decode"} 5.0\nsglang:prompt_tokens_total 9.0\n'
        b'sglang:num_running_reqs{a="b"} 1.0\nsglang:num_queue_reqs 2.0\n'
    )
    assert SGLANG.work(text) == ((5,), 3)


def test_connections_of_clients_are_counted_by_port(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    rows = ["0100007F:1F40 0100007F:A1B2 01", "00000000:1F40 00000000:0000 0A", "0100007F:1F41 0100007F:A1B3 01", "x"]
    table.write_text("header\n" + "".join(f" 0: {row} 0 0\n" for row in rows))
    assert liveness.connections(8000, (str(table), str(tmp_path / "none"))) == 1


def test_compilers_and_pressure_are_read_from_proc(tmp_path: Path) -> None:
    assert not liveness.compiling(str(tmp_path))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "comm").write_text("cicc\n")
    assert liveness.compiling(str(tmp_path))
    told = tmp_path / "memory"
    assert liveness.pressure(str(told)) == 0
    told.write_text("some avg10=9.00 avg60=0 avg300=0 total=1\nfull avg10=42.50 avg60=0 avg300=0 total=1\n")
    assert liveness.pressure(str(told)) == 42.5


@pytest.mark.parametrize(
    ("available", "waits", "floor", "verdict"),
    [
        (9, 0, 2, ""),
        (3, 0, 2, "warn"),
        (2.9, 0, 2, "refuse"),
        (3, 50, 2, "end"),
        (9, 90, 2, ""),
        (1, 0, 2, "end"),
        (1, 99, 0, ""),
        (None, 99, 2, ""),
    ],
)
def test_the_host_keeps_its_memory(available: int | None, waits: float, floor: int, verdict: str) -> None:
    assert liveness.short_of_memory(available, waits, floor) == verdict


def test_memory_that_runs_out_stops_compilers_then_warns_refuses_and_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meminfo, waits, ended = tmp_path / "meminfo", tmp_path / "memory", list[tuple[int, int]]()
    monkeypatch.setattr(readings, "MEMINFO", str(meminfo))
    monkeypatch.setattr(readings, "CGROUP", str(tmp_path / "none"))
    monkeypatch.setattr(private_files, "PLACE", str(tmp_path))
    monkeypatch.setattr(liveness, "pressure", partial(liveness.pressure, str(waits)))
    monkeypatch.setattr(liveness, "end", lambda *call: ended.append(call))
    floor, warned = 2 * liveness.GB, -watch.WARN_EVERY

    def left(gigabytes: float, now: float, full: float = 0) -> list[str]:
        nonlocal warned
        meminfo.write_text(f"MemTotal: 125000000 kB\nMemAvailable: {gigabytes * liveness.GB / 1024:.0f} kB\n")
        waits.write_text(f"some avg10=0.00 total=0\nfull avg10={full:.2f} avg60=0.00 avg300=0.00 total=1\n")
        warned = watch.look_at_memory(floor, 7, now, warned)
        return capsys.readouterr().err.splitlines()

    assert ahead.floor(floor) == 6 * liveness.GB, "compilers end by themselves"
    assert left(5.9, 0) == []
    [said] = left(3.9, 1)
    assert said.startswith("[serve] WARNING: 3.9 GB of memory are left (MEMORY_FLOOR is 2), and everything waited")
    assert left(3.5, 2) == [], "a warning a minute"
    [said] = left(2.9, 3, full=12)
    assert said.endswith("in 12 % of the last 10 s: new requests are refused until 4 GB are left")
    assert private_files.read(state.SHORT).startswith("The server takes no new requests: 2.9 GB of memory are left")
    assert (left(2.8, 4), left(3.5, 5)) == ([], []), "still refused"
    assert private_files.exists(state.SHORT)
    assert left(4.1, 6) == ["[serve] 4.1 GB of memory are left: accepting requests again"]
    assert not private_files.exists(state.SHORT)
    assert not ended
    [said] = left(1.9, 7)
    assert said.endswith("ending the server with code 70, before the host freezes")
    assert left(3.9, 8, full=45)
    assert ended == [(7, liveness.MEMORY)] * 2


SERVER = """
import os, signal, subprocess, sys, time
from images.serve.program import first_process, private_files, liveness
private_files.PLACE = sys.argv[1]
first_process.stay()
if not os.fork():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    os.kill(child.pid, signal.SIGSTOP)
    open(sys.argv[1] + "/child", "w").write(str(child.pid))
    liveness.time.sleep = lambda _: None
    liveness.end(os.getppid(), liveness.STUCK)
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    time.sleep(1)
"""


def test_a_server_that_ignores_everything_is_ended_with_its_children_and_its_code(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SERVER, str(tmp_path)], cwd=REPOSITORY, timeout=30, check=False)
    assert done.returncode == liveness.STUCK
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split(")")[1]:
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("its child goes on")
