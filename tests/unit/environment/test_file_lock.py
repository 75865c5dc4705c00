"""Locks on files: exclusive, shared, and with waits that can be stopped."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import pytest

from imagefactory.environment.file_lock import exclusive, shared
from tests.fixtures.checkouts import REPOSITORY


class BusyError(Exception):
    pass


def refuse() -> None:
    raise BusyError


def test_lock_is_released(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), exclusive(tmp_path / "new" / "lock", busy=refuse):
        raise KeyboardInterrupt
    for _ in range(2):
        with exclusive(tmp_path / "new" / "lock", busy=refuse):
            pass


FORKING = """
import os, sys
from pathlib import Path
from imagefactory.environment.file_lock import exclusive
lock = Path(sys.argv[1])
with exclusive(lock):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # ends with the parent
        os._exit(0)
with exclusive(lock, busy=lambda: sys.exit("the child keeps it")):
    pass
"""


def test_child_process_does_not_keep_a_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKING, str(tmp_path / "lock")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_exclusive_lock_has_one_holder(tmp_path: Path) -> None:
    for held in (exclusive, shared):
        with held(tmp_path / "lock"), pytest.raises(BusyError), exclusive(tmp_path / "lock", busy=refuse):
            pytest.fail("two hold it")


def test_shared_lock_has_several_holders(tmp_path: Path) -> None:
    with shared(tmp_path / "lock"), ThreadPoolExecutor(1) as pool:

        def share() -> bool:
            with shared(tmp_path / "lock"):
                return True

        assert pool.submit(share).result(5)


@pytest.mark.parametrize("stopped", [None, threading.Event()])
def test_waiter_is_notified_and_gets_the_lock_next(tmp_path: Path, stopped: threading.Event | None) -> None:
    order: list[str] = []
    waits = threading.Event()

    def wait() -> None:
        with exclusive(tmp_path / "lock", busy=waits.set, stopped=stopped):
            order.append("second")

    with ThreadPoolExecutor(1) as pool:
        with exclusive(tmp_path / "lock"):
            future = pool.submit(wait)
            assert waits.wait(5)
            order.append("first")
        future.result(5)
    assert order == ["first", "second"]


def test_wait_can_be_stopped(tmp_path: Path) -> None:
    stopped = threading.Event()
    threading.Timer(0.05, stopped.set).start()
    started = time.monotonic()
    with (
        exclusive(tmp_path / "lock"),
        pytest.raises(CancelledError),
        exclusive(tmp_path / "lock", stopped=stopped),
    ):
        pytest.fail("two hold it")
    assert time.monotonic() - started < 5
