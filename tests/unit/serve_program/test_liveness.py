"""The companion tells a stuck server from one that works, waits or compiles."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from images.serve.program import liveness
from images.serve.program.liveness import IDLE, PATIENCE, QUIET, HangDetector
from images.serve.program.servers.sglang import SERVER as SGLANG
from images.serve.program.servers.vllm import SERVER as VLLM
from tests.fixtures.checkouts import REPOSITORY


def test_a_server_that_does_not_move_while_somebody_waits_is_asked_and_then_stuck() -> None:
    seen = HangDetector(0)
    seen.see(1, (100,), waiting=True)
    assert not seen.asks(QUIET, waiting=True)
    assert seen.asks(1 + QUIET, waiting=True)
    assert not seen.asks(2 + QUIET, waiting=True), "one request at a time"
    assert not seen.stuck(QUIET + PATIENCE)
    assert seen.stuck(1 + QUIET + PATIENCE)
    seen.see(20, (101,), waiting=True)
    assert not seen.stuck(200), "it moves again"


@pytest.mark.parametrize("how", ["work", "a step of a minute", "an answer or a compiler"])
def test_whatever_moves_is_not_stuck(how: str) -> None:
    """A long prefill works step by step, however long the request for a token waits behind it."""
    seen, asked = HangDetector(0), 0
    for now in range(0, 10_000, 5):
        work = {"work": (now * 100.0,), "a step of a minute": (now // 60 * 8192.0,)}.get(how)
        # SGLang does not count a request as running before its prompt is read.
        seen.see(now, work, waiting=True, alive=work is None, starving=work is not None and now % 600 < 500)
        asked += seen.asks(now, waiting=True)
        assert not seen.stuck(now)
        assert seen.starves is None or now - seen.starves <= 60
    assert (asked > 100) is (how == "a step of a minute")


def test_an_idle_server_is_asked_rarely() -> None:
    seen = HangDetector(0)
    asked = []
    for now in range(0, 3000, 5):
        seen.see(now, (7.0,), waiting=False, alive=seen.asked is not None)
        if seen.asks(now, waiting=False):
            asked.append(now)
    assert asked[:3] == [IDLE, IDLE + 5 + IDLE, 2 * (IDLE + 5) + IDLE]


def test_the_limit_counts_from_when_somebody_waits_and_not_while_the_server_is_idle() -> None:
    seen = HangDetector(0)
    for now in range(0, 100, 5):
        seen.see(now, (7.0,), waiting=False)
    assert not seen.asks(95, waiting=False)
    seen.see(100, (7.0,), waiting=True)
    assert not seen.asks(100, waiting=True), "the first who waits has only just come"
    assert seen.waits == 95
    for now in range(105, 95 + int(QUIET), 5):
        seen.see(now, (7.0,), waiting=True)
        assert not seen.asks(now, waiting=True)
    assert seen.asks(95 + QUIET, waiting=True)
    assert seen.waits == 95


def test_a_request_that_never_runs_is_seen_though_the_server_answers_our_question() -> None:
    """As with a full stage of an offloaded KV cache: looked up again and again, never loaded."""
    seen, tokens, answered = HangDetector(0), 1000.0, 0
    for now in range(0, 300, 5):
        alive = seen.asked is not None
        tokens += 3 * alive
        answered += alive
        seen.see(now, (tokens, 0.5), waiting=True, alive=alive, starving=True)
        seen.asks(now, waiting=True)
        assert not seen.stuck(now)
    assert answered > 5
    assert seen.starves == 5
    seen.see(300, (tokens + 500, 0.5), waiting=True, starving=True)
    assert seen.starves is None, "something else gets on"
    for now in range(305, 600, 5):
        seen.see(now, (tokens + 500 * now, 0.5), waiting=True, deferred=True)
    assert seen.starves == 305, "others are answered, and one is not"
    seen.see(600, (0.0, 0.5), waiting=True)
    assert seen.starves is None


def test_a_process_that_was_stopped_with_its_server_judges_nothing() -> None:
    """As by `docker pause`, or when the machine sleeps."""
    seen = HangDetector(0)
    seen.see(0, (7.0,), waiting=True, starving=True)
    assert seen.asks(QUIET, waiting=True)
    seen.see(5000, (7.0,), waiting=True, starving=True)
    assert not seen.stuck(5000)
    assert (seen.waits, seen.starves) == (5000, None)


def test_metrics_tell_work_and_requests() -> None:
    text = (
        b'vllm:iteration_tokens_total_sum{engine="0"} 1.5e+03\nvllm:iteration_tokens_total_bucket{le="8"} 9.0\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 2.5e-01\nvllm:num_requests_running{engine="0"} 2.0\n'
        b'vllm:num_requests_waiting{engine="0"} 1.0\nvllm:num_requests_waiting_by_reason{reason="x"} 5.0\n'
    )
    assert VLLM.work(text) == ((1500, 0.25), 2, 1, 0)
    deferred = b'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 2.0\n'
    fetched = b'vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="m",stage="in_progress"} '
    assert VLLM.work(deferred).deferred == 0, "without a connector it is a grammar that is compiled"
    assert VLLM.work(deferred + fetched + b"1.0\n").deferred == 0
    assert VLLM.work(deferred + fetched + b"0.0\n").deferred == 2
    text = (
        b'sglang:realtime_tokens_total{mode="decode"} 5.0\nsglang:prompt_tokens_total 9.0\n'
        b'sglang:num_running_reqs{a="b"} 1.0\nsglang:num_queue_reqs 2.0\n'
    )
    assert SGLANG.work(text) == ((5,), 1, 2, 0)


def test_connections_of_clients_are_counted_by_port(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    rows = ["0100007F:1F40 0100007F:A1B2 01", "00000000:1F40 00000000:0000 0A", "0100007F:1F41 0100007F:A1B3 01", "x"]
    table.write_text("header\n" + "".join(f" 0: {row} 0 0\n" for row in rows))
    assert liveness.connections(8000, (str(table), str(tmp_path / "none"))) == 1


def test_compilers_are_seen_in_proc(tmp_path: Path) -> None:
    assert not liveness.compiling(str(tmp_path))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "comm").write_text("cicc\n")
    assert liveness.compiling(str(tmp_path))


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
