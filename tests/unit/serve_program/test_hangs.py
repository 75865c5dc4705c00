"""A server that freezes, in whichever phase, is unhealthy first and then ended, and its log says where it was."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.serve.program import liveness, processes
from tests.fixtures.engines import wait_until
from tests.fixtures.serve_process import SERVES_REQUESTS, Start, free_port, recorded, wait_for

FAST = {
    "hangs.LOOK": 0.2,
    "liveness.QUIET": 0.6,
    "liveness.IDLE": 1.2,
    "liveness.PATIENCE": 1.0,
    "liveness.START_PATIENCE": 1.5,
    "liveness.STARVING": 1.0,
}
BUSY = "f'vllm:iteration_tokens_total_sum {time.time()}\\nvllm:num_requests_running 1.0\\n'"
IDLE = "'vllm:iteration_tokens_total_sum 7.0\\nvllm:num_requests_running 0.0\\n'"
STARVING = "'vllm:iteration_tokens_total_sum 7.0\\nvllm:num_requests_running 0.0\\nvllm:num_requests_waiting 1.0\\n'"

DEFERRED = """'''vllm:iteration_tokens_total_sum {}
vllm:num_requests_running 3.0
vllm:num_requests_waiting_by_reason{{reason="deferred"}} 1.0
vllm:num_requests_kv_fetch_by_stage{{stage="in_progress"}} 0.0
'''.format(time.time())"""


class Frozen:
    """What became of a server that froze."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.note = folder / f"imagefactory-{os.getuid()}" / "stuck"
        began = time.monotonic()
        wait_until(self.note.exists, 20)
        self.unhealthy, self.told = time.monotonic() - began, self.note.read_text()
        assert process.poll() is None, "unhealthy first"
        _, self.log = process.communicate(timeout=30)
        self.ended, self.code = time.monotonic() - began, process.returncode


@pytest.fixture
def started(start: Start, tmp_path: Path) -> Iterator[Start]:
    """Start the program with fast clocks; end what is left of it."""
    running: list[subprocess.Popen[str]] = []

    def run(then: str, **more: str) -> subprocess.Popen[str]:
        running.append(start(then=then, clocks=FAST, PORT=str(free_port()), **more))
        wait_for(tmp_path / "record")
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.communicate(timeout=20)


def serves(metrics: str = IDLE, post: str = "pass") -> str:
    return SERVES_REQUESTS.format(metrics=metrics, post=post)


@pytest.mark.parametrize(
    ("then", "warm_up", "says"),
    [
        ("def loads_weights():\n    time.sleep(600)\nloads_weights()", "0", "the start is stuck"),
        (serves(post="generates_for_ever()"), "1", "the engine is stuck"),
        (serves(post="generates_for_ever()"), "0", "the engine is stuck"),
        (serves(STARVING), "0", "a request is never begun"),
        (serves(DEFERRED), "0", "a request is never begun"),
    ],
    ids=["loads", "is warmed up", "is idle", "begins nothing", "defers one"],
)
def test_a_server_that_freezes_is_unhealthy_and_then_ended(
    started: Start, tmp_path: Path, then: str, warm_up: str, says: str
) -> None:
    frozen = Frozen(started(then, WARMUP=warm_up, HANG_LIMIT="3"), tmp_path)
    sys.stdout.write(f"unhealthy after {frozen.unhealthy:.1f} s, ended after {frozen.ended:.1f} s\n")
    assert says in frozen.told
    assert frozen.code == liveness.STUCK
    assert "Ending the server with code 69, after HANG_LIMIT=3 s" in frozen.log
    assert re.search(r"process \d+ \(vllm\): \d+% of a core; its newest calls:", frozen.log)
    assert re.search(r"line \d+ in (loads_weights|generates_for_ever)\n", frozen.log), "its stack"


@pytest.mark.parametrize("metrics", [IDLE, BUSY], ids=["idle", "busy"])
def test_who_answers_our_question_or_works_is_not_stuck(started: Start, tmp_path: Path, metrics: str) -> None:
    process = started(serves(metrics, "'max_tokens\": 1}' in asked or generates_for_ever()"), HANG_LIMIT="1")
    time.sleep(4)
    assert process.poll() is None
    assert not (tmp_path / f"imagefactory-{os.getuid()}" / "stuck").exists()


def test_the_watch_and_the_reports_share_one_reading_of_the_metrics(started: Start, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    from_disk = """'vllm:prompt_tokens_cached_by_source_total{source="disk"} 4096.0\\n'"""
    process = started(serves(f"(open({str(asked)!r}, 'a').write('x'), {from_disk})[1]"), HANG_LIMIT="0")
    assert process.stderr is not None
    assert any("4,096 tokens of prompts came from KV_DISK" in line for line in process.stderr)
    before, began = asked.stat().st_size, time.monotonic()
    time.sleep(4)
    looks = asked.stat().st_size - before
    assert 0 < looks <= (time.monotonic() - began) / FAST["hangs.LOOK"] + 1


def test_a_server_that_answers_at_no_port_is_not_judged(started: Start) -> None:
    process = started("time.sleep(600)", EXTRA_ARGS="--uds /run/vllm", CHECKS="off", HANG_LIMIT="1")
    time.sleep(4)
    assert process.poll() is None


def test_a_stopped_process_is_named_and_one_that_goes_on_is_well_again(started: Start, tmp_path: Path) -> None:
    process = started(serves(BUSY), HANG_LIMIT="0")
    server = recorded(tmp_path)["pid"]
    note = tmp_path / f"imagefactory-{os.getuid()}" / "stuck"
    time.sleep(2)
    assert not note.exists()
    os.kill(server, signal.SIGSTOP)
    wait_until(note.exists, 20)
    time.sleep(2)
    os.kill(server, signal.SIGCONT)
    wait_until(lambda: not note.exists(), 20)
    time.sleep(2)  # the line comes after that
    os.kill(server, signal.SIGKILL)
    _, log = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGKILL
    assert f"process {server} (vllm): stopped by a signal\n" in log
    assert "the engine is making progress again" in log


SLOW = {
    "computes": "until = time.process_time() + 0.1\nwhile time.process_time() < until: pass\ntime.sleep(0.3)",
    "reads": "open('/proc/self/exe', 'rb').read(200_000)\ntime.sleep(0.15)",
    "downloads": "open(cache + '/x.incomplete', 'a').write('x')\ntime.sleep(0.3)",
    "waits": "time.sleep(0.3)",
    "polls": "until = time.monotonic() + 0.005\nwhile time.monotonic() < until: pass\ntime.sleep(0.3)",
}


@pytest.mark.parametrize("how", SLOW)
def test_who_computes_reads_or_downloads_slowly_gets_on(tmp_path: Path, how: str) -> None:
    cache = tmp_path / "models--a--b" / "blobs"
    cache.mkdir(parents=True)
    body = "\n".join(f"    {line}" for line in SLOW[how].splitlines())
    program = f"import time\ncache = {str(cache)!r}\nprint(flush=True)\nwhile True:\n{body}"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        process.stdout.readline()
        time.sleep(0.5)
        activity = processes.Activity(process.pid, str(tmp_path))
        moved = []
        for _ in range(4):
            time.sleep(1)
            moved.append(activity.moved())
        assert process.poll() is None
        if how in {"waits", "polls"}:
            assert not any(moved)
        else:
            assert moved.count(True) >= 2  # a second of a busy machine may be other processes' alone
    finally:
        process.kill()
        process.communicate()


def test_a_tree_of_processes_has_what_is_below_without_what_is_left_out() -> None:
    script = "sleep 60 & sh -c 'sleep 60; :' & echo; wait"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        process.stdout.readline()
        wait_until(lambda: len(processes.tree(process.pid)) == 4, 20)
        found = processes.tree(process.pid)
        assert {each.name for each in found.values()} == {"sh", "sleep"}
        [shell] = [number for number, each in found.items() if each.name == "sh" and number != process.pid]
        assert len(processes.tree(process.pid, without=(shell,))) == 2
        assert set(processes.tree(process.pid, without=(process.pid,))) == set(found) - {process.pid}
        assert processes.tree(2**22 + 1) == {}
    finally:
        for number in processes.tree(process.pid):
            os.kill(number, signal.SIGKILL)
        process.communicate()
