"""Locks on files between processes and threads; a process that dies releases them."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

_POLL = 0.2
"""Seconds between two attempts of a wait that can be stopped."""


def exclusive(
    file: Path, *, busy: Callable[[], object] | None = None, stopped: threading.Event | None = None
) -> AbstractContextManager[None]:
    """Hold a lock alone.

    Args:
        file: the lock; it is created if necessary, and stays.
        busy: called before waiting for another holder; an exception from it ends the attempt.
        stopped: when set, ends the wait with a CancelledError.
    """
    return _holding(file, fcntl.LOCK_EX, busy, stopped)


def shared(file: Path) -> AbstractContextManager[None]:
    """Hold a lock together with others that share it."""
    return _holding(file, fcntl.LOCK_SH)


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
            # Another thread cannot interrupt the system call that waits.
            while stopped is not None and not _try(lock.fileno(), mode):
                if stopped.wait(_POLL):
                    raise CancelledError
        try:
            yield
        finally:
            # Closing is not enough: a process that was forked meanwhile also has the file open.
            fcntl.flock(lock, fcntl.LOCK_UN)


def _try(lock: int, mode: int) -> bool:
    try:
        fcntl.flock(lock, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
