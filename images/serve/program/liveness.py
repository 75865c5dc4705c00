"""Watches whether the server's engine moves, and whether the host has memory left.

A server's own /health stays green when its engine hangs, and its metrics stay as they were. So if nothing moves while
somebody waits, the server is asked for one token: if that stays unanswered, and nothing else moves, it is stuck.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from . import health, private_files, state

QUIET, IDLE = 20.0, 120.0
"""Seconds without a movement after which the server is asked: while somebody waits, and else.

With 120, HANG_LIMIT's default of 300 holds for an idle server too. One token takes a GPU about 0.1 s, so it is busy for
0.1 % of the time; nothing keeps it from idling in between.
"""
PATIENCE = 60.0
"""Seconds without an answer and without any movement after which the server is stuck."""
STUCK, MEMORY, PARTED = 69, 70, 71
"""The exit codes of a server that was ended: it was stuck, the host ran out of memory, the other node failed."""
COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "cc1plus", "ninja"})
"""While one of them runs, the server may wait for it."""
ESTABLISHED = "01"
PRESSURE = 40.0
"""Per cent of the last ten seconds in which all processes waited for memory."""
COMPILING, WARNING, REFUSING = 3.0, 2.0, 1.5
"""Multiples of MEMORY_FLOOR: with less, compiling beside the server ends, there is a warning, requests are refused."""
GB = 1_000_000_000


class HangDetector:
    """Decides from what is seen of a server whether it is stuck; the caller has the clock."""

    def __init__(self, now: float) -> None:
        self.moved = now
        self.work: object = None
        self.asked: float | None = None
        """Since when an answer is awaited."""

    def see(self, now: float, work: object, *, alive: bool = False) -> None:
        """Take in figures that change as the server works, if known; `alive` if it answered or waits for a compiler."""
        if alive or (work is not None and work != self.work):
            self.moved, self.asked = now, None
        self.work = self.work if work is None else work

    def asks(self, now: float, *, waiting: bool) -> bool:
        """Whether to ask now; begins to wait for the answer."""
        if self.asked is not None or now - self.moved < (QUIET if waiting else IDLE):
            return False
        self.asked = now
        return True

    def stuck(self, now: float) -> bool:
        return self.asked is not None and now - self.asked >= PATIENCE


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


def compiling(processes: str = "/proc") -> bool:
    for name in Path(processes).glob("[0-9]*/comm"):
        with suppress(OSError):
            if name.read_text("utf-8", "replace").strip() in COMPILERS:
                return True
    return False


def pressure(path: str = "/proc/pressure/memory") -> float:
    """Return the share of the last ten seconds in which everything waited for memory, in per cent; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        full = next(line for line in Path(path).read_text("ascii").splitlines() if line.startswith("full"))
        return float(full.split("avg10=")[1].split()[0])
    return 0.0


def short_of_memory(available: int | None, waits: float, floor: int) -> str:
    """Return what to do about the host's memory: nothing, `warn`, `refuse` new requests or `end` the server."""
    if not floor or available is None or available >= WARNING * floor:
        return ""
    if available < floor or waits >= PRESSURE:
        return "end"
    return "refuse" if available < REFUSING * floor else "warn"


def end(server: int, code: int) -> None:
    """End a server that may no longer react, with all that it started but this process; its parent gets the code."""
    with suppress(OSError):
        private_files.write(f"{state.ENDING}.{server}", str(code))
    for process in _descendants(server) - {os.getpid()}:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.kill(server, number)
        time.sleep(10)


def _descendants(process: int) -> set[int]:
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parents[int(path.parent.name)] = int(path.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    found, before = {process}, set[int]()
    while found != before:
        before, found = found, found | {child for child, parent in parents.items() if parent in found}
    return found - {process}
