"""Lets a program that is told to end clean up first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, so that containers are removed as on an interrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread handles signals
        return

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)  # as a shell reports the signal

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
