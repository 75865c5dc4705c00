"""Measures how fast the server reads its weights from the disk, by what the kernel counts for its processes."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from . import processes

EVERY, MOST = 1.0, 7200
"""Seconds between samples, and how many are taken at most."""
ENOUGH = 5_000_000_000
"""Bytes below which a speed says little: most came from the page cache, or the model is small."""


class ReadMeter:
    """Samples what a server and its children have read, until it is asked for the speed."""

    def __init__(self, server: int, counters: str = "/proc") -> None:
        self.server, self.counters = server, counters
        self.samples: list[tuple[float, int]] = []
        self.read: dict[int, int] = {}
        """By process: one that has ended still counts."""
        self.ended = threading.Event()

    def begin(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while os.getppid() == self.server and len(self.samples) < MOST and not self.ended.wait(EVERY):
            self.sample(time.monotonic())

    def sample(self, now: float) -> None:
        for process in processes.tree(self.server, without=(os.getpid(),)):
            with suppress(OSError, ValueError, IndexError):
                text = Path(self.counters, str(process), "io").read_text("ascii")
                self.read[process] = int(text.split("\nread_bytes: ")[1].split()[0])
        self.samples.append((now, sum(self.read.values())))

    def megabytes_per_second(self, began: float | None, ended: float | None) -> int | None:
        """End the sampling; return the speed between two moments, or None if too little was read to tell."""
        self.ended.set()
        if began is None or ended is None or ended <= began:
            return None
        before = max((read for moment, read in self.samples if moment <= began), default=0)
        read = max((read for moment, read in self.samples if moment <= ended + EVERY), default=0) - before
        return int(read / (ended - began) / 1e6) if read >= ENOUGH else None
