"""Locks between processes and threads, held on files: a process that dies releases them."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path

_POLL = 0.2
"""Seconds between two attempts of a wait that can be stopped."""


@contextmanager
def exclusive(
    file: Path, *, busy: Callable[[], object] | None = None, stopped: threading.Event | None = None
) -> Iterator[None]:
    """Hold a lock alone, once nobody else holds it.

    Args:
        file: the lock; it is created where it does not exist, and stays.
        busy: called before waiting for another holder; an exception that it raises ends the attempt.
        stopped: ends the wait with a CancelledError once it is set.
    """
    with _holding(file, fcntl.LOCK_EX, busy, stopped):
        yield


@contextmanager
def shared(file: Path) -> Iterator[None]:
    """Hold a lock together with others who share it."""
    with _holding(file, fcntl.LOCK_SH):
        yield


@contextmanager
def _holding(
    file: Path,
    mode: int,
    busy: Callable[[], object] | None = None,
    stopped: threading.Event | None = None,
) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        if not _try(lock.fileno(), mode):
            if busy is not None:
                busy()
            if stopped is None:
                fcntl.flock(lock, mode)
            else:
                _wait(lock.fileno(), mode, stopped)
        try:
            yield
        finally:
            # Closing alone would not do it: a process forked meanwhile has the file open, too.
            fcntl.flock(lock, fcntl.LOCK_UN)


def _wait(lock: int, mode: int, stopped: threading.Event) -> None:
    # The system call that waits cannot be interrupted from another thread.
    while not _try(lock, mode):
        if stopped.wait(_POLL):
            raise CancelledError


def _try(lock: int, mode: int) -> bool:
    try:
        fcntl.flock(lock, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
