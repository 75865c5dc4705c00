"""The host keeps its memory, however fast it goes; a server that only loads its model is left alone."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from images.serve.program import ahead, liveness, memory_guard, private_files, readings, state
from images.serve.program.image import Image
from images.serve.program.memory_guard import EVERY, GB, HALF, WARN_EVERY, Fall, Guard, Guarded, verdict
from images.serve.program.readings import Gpu, Readings
from tests.fixtures.serving import REPOSITORY, start_of

FLOOR = 2 * GB


class Host:
    """A host whose memory is a file; the clock goes on by itself."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], planned: float) -> None:
        self.meminfo, self.waits, self.kernel = (folder / name for name in ("meminfo", "pressure", "kmsg"))
        self.kernel.write_text("")
        self.ended: list[tuple[int, int]] = []
        self.now, self.left, self._capsys = 0.0, 0.0, capsys
        self.guarded = Guarded(FLOOR, int(planned * GB), unified=True)
        self.guard = Guard(self.guarded, 7, memory_guard.DriverLog(str(self.kernel)))

    def leave(self, gigabytes: float, full: float = 0, seconds: float = EVERY) -> list[str]:
        """Let so much memory be left; return what is said about it."""
        self.left, self.now = gigabytes, self.now + seconds
        self.meminfo.write_text(f"MemTotal: 125000000 kB\nMemAvailable: {max(0, gigabytes) * GB / 1024:.0f} kB\n")
        self.waits.write_text(f"some avg10=0.00 total=0\nfull avg10={full:.2f} avg60=0.00 avg300=0.00 total=1\n")
        self.guard.look(self.now)
        return self._capsys.readouterr().err.splitlines()

    def fall(self, start: float, to: float, rate: float) -> list[str]:
        """Let memory fall by so many gigabytes a second, until the server is ended or so much is left."""
        said = []
        while start > to and not self.ended:
            start = max(to, start - rate * EVERY)
            said += self.leave(start)
        return said


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Host]:
    def make(planned: float = 10) -> Host:
        made = Host(tmp_path, capsys, planned)
        monkeypatch.setattr(readings, "MEMINFO", str(made.meminfo))
        monkeypatch.setattr(readings, "CGROUP", str(tmp_path / "none"))
        monkeypatch.setattr(private_files, "PLACE", str(tmp_path))
        read = memory_guard.pressure
        monkeypatch.setattr(memory_guard, "pressure", lambda: read(str(made.waits)))
        monkeypatch.setattr(liveness, "end", lambda *call: made.ended.append(call))
        return made

    return make


@pytest.mark.parametrize(
    ("left", "waits", "floor", "failing", "decision"),
    [
        (9, 0, 2, False, ""),
        (3, 0, 2, False, "warn"),
        (2.9, 0, 2, False, "refuse"),
        (3, 50, 2, False, "end"),
        (3, 0, 2, True, "end"),
        (9, 90, 2, True, ""),
        (1, 0, 2, False, "end"),
        (-9, 0, 2, False, "end"),
        (1, 99, 0, True, ""),
    ],
)
def test_what_is_left_decides(left: float, waits: float, floor: int, failing: bool, decision: str) -> None:  # noqa: FBT001
    assert verdict(left, waits, floor, failing=failing) == decision


def test_memory_that_runs_out_slowly_stops_compilers_then_warns_refuses_and_ends_the_server(
    host: Callable[..., Host],
) -> None:
    box = host()
    assert ahead.floor(FLOOR) == 6 * GB, "compilers end by themselves"
    slowly = {"seconds": 10.0}
    assert box.leave(5.9, **slowly) == []
    [said] = box.leave(3.9, **slowly)
    assert said.startswith("[serve] WARNING: 3.9 GB of memory are left (MEMORY_FLOOR is 2), and everything waited")
    assert box.leave(3.5, **slowly) == [], "a warning a minute"
    [said] = box.leave(2.9, full=12, **slowly)
    assert said.endswith("in 12 % of the last 10 s: new requests are refused until 4 GB are left")
    assert private_files.read(state.SHORT).startswith("The server takes no new requests: 2.9 GB of memory are left")
    assert (box.leave(2.8, **slowly), box.leave(3.5, **slowly)) == ([], []), "still refused"
    assert private_files.exists(state.SHORT)
    assert box.leave(4.1, **slowly) == ["[serve] 4.1 GB of memory are left: accepting requests again"]
    assert not private_files.exists(state.SHORT)
    assert not box.ended
    assert box.leave(1.9, **slowly)[-1].endswith("ending the server with code 70, before the host freezes")
    box.leave(3.9, full=45, **slowly)
    assert box.ended == [(7, liveness.MEMORY)] * 2


@pytest.mark.parametrize("rate", [1, 3, 5, 10])
@pytest.mark.parametrize("start", [9, 15])
def test_memory_that_falls_fast_ends_the_server_while_enough_is_left(
    host: Callable[..., Host], rate: float, start: float
) -> None:
    """A second before the floor at the same pace, but for the first 0.6 s, in which it might be one allocation."""
    box = host()
    for _ in range(10):
        assert box.leave(start) == []
    said = box.fall(start, -5, rate)
    assert box.ended == [(7, liveness.MEMORY)]
    assert "GB less each second" in said[-1]
    lag = 2 * HALF * EVERY
    assert box.left >= min(2 + rate, start - rate * lag), f"{box.left:.1f} GB were left"


def test_the_fall_that_froze_hosts_ends_the_server(host: Callable[..., Host]) -> None:
    """23.8, 10.6, 6.3 GiB, three seconds apart (vllm-project/vllm#56824); at a look each second all seemed well."""
    box = host()
    for start, to in ((25.6, 11.4), (11.4, 6.8), (6.8, 0)):
        box.fall(start, to, (start - to) / 3)
    assert box.ended
    assert box.left > 4


def test_loading_falls_fast_to_what_was_planned_and_one_large_allocation_is_no_fall(host: Callable[..., Host]) -> None:
    box = host(planned=5)
    for _ in range(10):
        box.leave(118)
    assert box.fall(118, 40, 8) == [], "weights"
    assert box.fall(40, 6, 60) == [], "the KV cache, at once"
    for _ in range(10):
        assert box.leave(6) == []
    box = host(planned=20)
    for left in (14, 14, 14, 14, 14, 14, 14, 9, 9, 9, 9, 9, 9, 9, 9):
        assert box.leave(left) == [], "5 GB at once, and no more"
    assert not box.ended


def test_memory_that_stops_falling_is_no_danger() -> None:
    fall = Fall()
    rates = [fall.see(step * EVERY, 10 * GB - min(step, 9) * GB // 10) for step in range(30)]
    assert rates[2 * HALF + 1] == pytest.approx(1 * GB)
    assert rates[-1] == 0
    assert Fall().see(0, GB) == 0


def test_the_drivers_failed_allocations_count_only_with_little_memory(host: Callable[..., Host]) -> None:
    """Starts that succeed have dozens of them."""
    box = host()
    failure = "4,99,1,-;NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)\n"
    box.leave(20, seconds=WARN_EVERY)
    with box.kernel.open("a") as log:
        log.write(failure * 2)
    [said] = box.leave(20)
    assert said == "[serve] WARNING: the driver could not allocate memory (2 times); 20.0 GB of memory are left"
    assert not box.ended
    with box.kernel.open("a") as log:
        log.write(failure)
    [said] = box.leave(3.9)
    assert "; the driver failed to allocate some 3 times: ending the server with code 70" in said
    assert box.ended


def test_the_guard_says_when_it_does_nothing_and_what_it_cannot_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(guarded: Guarded) -> str:
        memory_guard.begin(guarded, 7)  # no parent of this process: the thread ends at once
        return capsys.readouterr().err

    assert said(Guarded(FLOOR, None, unified=False)) == "[serve] the host's memory is not guarded: no GPU shares it\n"
    assert "is not guarded: MEMORY_FLOOR is 0\n" in said(Guarded(0, None, unified=True))
    monkeypatch.setattr(memory_guard, "KERNEL_LOG", str(tmp_path / "none"))
    assert "; the driver's failed allocations are not seen: " in said(Guarded(FLOOR, None, unified=True))
    monkeypatch.setattr(readings, "MEMINFO", str(tmp_path / "none"))
    assert "none does not tell how much is available\n" in said(Guarded(FLOOR, None, unified=True))


def test_the_plan_is_what_the_server_leaves_of_the_memory(program_image: Callable[..., Image]) -> None:
    machine = Readings(gpus=(Gpu("GB10", "12.1"),), memory_total=128 * GB, memory_available=120 * GB)
    start = start_of(program_image("gemma4-31b"), machine, GPU_MEMORY_UTILIZATION="0.8")
    assert start.share == 102.4 * GB
    assert start.planned_rest == 9.6 * GB
    own = start_of(program_image("gemma4-31b"), Readings(gpus=(Gpu("H100", "9.0", 1, 1),), memory_available=GB))
    assert (own.share, own.memory_floor) == (0, 0)


TAKES = """
import os, sys, time
from pathlib import Path
from images.serve.program import liveness, memory_guard, readings
readings.MEMINFO, readings.CGROUP = sys.argv[1], "/none"
server = os.getpid()
liveness.end = lambda *call: os.kill(server, 9)
if os.fork() == 0:
    memory_guard.begin(memory_guard.Guarded(2 * 10**9, 10 * 10**9, unified=True), server)
    while os.getppid() == server:
        time.sleep(0.1)
    os._exit(0)
time.sleep(2)
begun = time.monotonic()
while True:
    time.sleep(0.02)
    left = max(0, 15e9 - 5e9 * (time.monotonic() - begun))
    new = Path(readings.MEMINFO + ".new")
    new.write_text(f"MemTotal: 125000000 kB\\nMemAvailable: {left / 1024:.0f} kB\\n")
    new.rename(readings.MEMINFO)
"""


def test_a_program_that_takes_5_gb_a_second_is_ended(tmp_path: Path) -> None:
    """In real time, on a host that a file describes; how much is left then, the clocks of the tests above tell."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 125000000 kB\nMemAvailable: {15 * GB // 1024} kB\n")
    program = [sys.executable, "-B", "-c", TAKES, str(meminfo)]
    done = subprocess.run(program, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == -9
    assert "GB less each second" in done.stderr
