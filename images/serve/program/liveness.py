"""Tells whether the server's engine moves, and ends a server that does not.

A server's own /health stays green when its engine hangs, and its metrics stay as they were. So if nothing moves while
somebody waits, the server is asked for one token: if that stays unanswered, and nothing else moves, it is stuck.
"""

import math
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from . import health, private_files, processes, state

QUIET, IDLE = 20.0, 120.0
"""Seconds without a movement after which the server is asked: while somebody waits, and else.

One token takes a GPU about 0.1 s, so it is busy for 0.1 % of the time; nothing keeps it from idling in between.
"""
PATIENCE, START_PATIENCE, STARVING = 60.0, 120.0, 120.0
"""Seconds after which the server is stuck: without an answer and any movement; without any work of its processes before
it listens; with requests that it does not begin, while it answers us."""
AWAY = 30.0
"""Seconds between two looks after which this process was stopped, and the server with it: as by `docker pause`."""
OWN_TOKENS = 16
"""The tokens of our own question at most."""
STUCK, MEMORY, PARTED = 69, 70, 71
"""The exit codes of a server that was ended: it was stuck, the host ran out of memory, another node failed."""
COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "cc1plus", "ninja"})
"""While one of them runs, the server may wait for it."""
ESTABLISHED = "01"


class HangDetector:
    """Decides from what is seen of a server whether it is stuck; the caller has the clock."""

    def __init__(self, now: float) -> None:
        self.moved = self.waits = self._looked = now
        """When it moved last, and since when somebody has waited for it; an idle server uses up no limit."""
        self.asked: float | None = None
        """Since when an answer is awaited."""
        self.starves: float | None = None
        """Since when requests have waited that the engine does not begin."""
        self._work: tuple[float, ...] | None = None

    def see(
        self,
        now: float,
        work: tuple[float, ...] | None,
        *,
        waiting: bool,
        alive: bool = False,
        starving: bool = False,
        deferred: bool = False,
    ) -> None:
        """Take in figures that change as the server works, if known, and whether somebody waits.

        `alive` if it answered or waits for a compiler; `starving` if requests wait and none runs; `deferred` if some
        wait for what nobody fetches, whatever else runs.
        """
        away = now - self._looked > AWAY
        steps = _difference(work, self._work)
        if alive or away or (work is not None and steps):
            self.moved, self.asked = now, None
        if self.moved == now or not (waiting or self.asked is not None):
            self.waits = now
        # The token of our own question is no progress of those who wait.
        if away or not (deferred or (starving and steps <= OWN_TOKENS)):
            self.starves = None
        elif self.starves is None:
            self.starves = now
        self._work, self._looked = self._work if work is None else work, now

    def asks(self, now: float, *, waiting: bool) -> bool:
        """Whether to ask now; begins to wait for the answer."""
        if self.asked is not None or (now - self.waits < QUIET if waiting else now - self.moved < IDLE):
            return False
        self.asked = now
        return True

    def stuck(self, now: float) -> bool:
        return self.asked is not None and now - self.asked >= PATIENCE


def _difference(work: tuple[float, ...] | None, before: tuple[float, ...] | None) -> float:
    if work is None:
        return 0.0
    if before is None or len(before) != len(work):
        return math.inf
    return sum(abs(new - old) for new, old in zip(work, before, strict=True))


def ask(where: health.Address, model: str, key: str) -> list[bool]:
    """Ask for one token in the background; the list gets an entry once there is an answer, or none will come."""
    outcome: list[bool] = []
    body = {"model": model, "prompt": "1", "max_tokens": 1}

    def send() -> None:
        try:
            status = health.request(where, "POST", "/v1/completions", body=body, key=key, timeout=PATIENCE).status
            outcome.append(status < 500)  # noqa: PLR2004 - a refusal is an answer
        except (OSError, ValueError):
            outcome.append(False)

    threading.Thread(target=send, daemon=True).start()
    return outcome


def connections(port: int, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> int:
    """Return how many clients are connected: servers close a connection soon after its last answer."""
    found = 0
    for table in tables:
        with suppress(OSError, ValueError, IndexError):
            for line in Path(table).read_text("ascii").splitlines()[1:]:
                words = line.split()
                found += words[3] == ESTABLISHED and int(words[1].rpartition(":")[2], 16) == port
    return found


def compiling(folder: str = "/proc") -> bool:
    for name in Path(folder).glob("[0-9]*/comm"):
        with suppress(OSError):
            if name.read_text("utf-8", "replace").strip() in COMPILERS:
                return True
    return False


def end(server: int, code: int) -> None:
    """End a server that may no longer react, with all that it started but this process; its parent gets the code."""
    with suppress(OSError):
        private_files.write(f"{state.ENDING}.{server}", str(code))
    for process in processes.tree(server, without=(os.getpid(), server)):
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.kill(server, number)
        time.sleep(10)
