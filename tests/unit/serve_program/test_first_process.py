"""The first process of a start, whose server may end by killing itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from images.serve.program import processes
from tests.fixtures.engines import wait_until
from tests.fixtures.serve_process import wait_for
from tests.fixtures.serving import REPOSITORY

ENDED = processes.Process("", "X", 0, 0, 0)
PROGRAM = """
import os
from images.serve.program import first_process
first_process.stay()
os.execv("/bin/sh", ["sh", "-c", {script!r}])
"""


def started(script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-B", "-c", PROGRAM.format(script=script)], cwd=REPOSITORY)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", 3), ("kill -KILL $$", 137), ("(exit 5) & wait; exit 4", 4), ("exit 0", 1)]
)
def test_the_exit_code_is_the_servers_but_nobody_asked_it_to_end_well(script: str, code: int) -> None:
    assert started(script).wait(20) == code


@pytest.mark.parametrize(
    ("number", "last", "code"),
    [
        (signal.SIGTERM, "kill -KILL $$", 0),
        (signal.SIGTERM, "exit 7", 7),
        (signal.SIGTERM, "exit 0", 0),
        (signal.SIGINT, "kill -KILL $$", 0),
        (signal.SIGQUIT, "kill -KILL $$", 137),
    ],
)
def test_only_a_server_that_was_asked_to_stop_may_kill_itself(
    tmp_path: Path, number: signal.Signals, last: str, code: int
) -> None:
    ready = tmp_path / "ready"
    script = f"trap '{last}' {number.name[3:]}; echo yes > {ready}; while :; do sleep 0.1; done"
    process = started(script)
    wait_for(ready)
    process.send_signal(number)
    assert process.wait(20) == code


def test_an_engine_does_not_outlive_its_server(tmp_path: Path) -> None:
    """It would hold the GPU's memory; only a container that ends takes everybody with it."""
    note = tmp_path / "engine"
    process = started(f"setsid sh -c 'echo $$ > {note}; exec sleep 600' & while [ ! -s {note} ]; do :; done; exit 3")
    assert process.wait(20) == 3
    engine = int(note.read_text())
    wait_until(lambda: processes.tree(engine).get(engine, ENDED).state in "ZX", 20)


def test_the_server_gets_a_group_of_its_own_and_no_blocked_signals(tmp_path: Path) -> None:
    told = tmp_path / "told"
    process = started(f"grep SigBlk /proc/self/status > {told}; cut -d' ' -f5 /proc/$$/stat >> {told}")
    process.wait(20)
    blocked, group = told.read_text().splitlines()
    assert int(blocked.split()[1], 16) == 0
    assert int(group) not in (os.getpgid(0), process.pid)


def test_it_can_be_stopped_while_it_is_still_loading(tmp_path: Path) -> None:
    """As process 1, which the kernel protects from what it has no handler for."""
    (tmp_path / "program").mkdir()
    loading = f"import pathlib, time\npathlib.Path({str(tmp_path / 'loading')!r}).write_text('yes')\ntime.sleep(100)\n"
    (tmp_path / "program" / "main.py").write_text(loading)
    (tmp_path / "__main__.py").write_bytes((REPOSITORY / "images" / "serve" / "__main__.py").read_bytes())
    as_first = f"import os, runpy; os.getpid = lambda: 1; runpy.run_path({str(tmp_path)!r})"
    process = subprocess.Popen([sys.executable, "-B", "-c", as_first])
    wait_for(tmp_path / "loading")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
