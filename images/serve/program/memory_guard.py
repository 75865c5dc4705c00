"""Keeps a host whose GPU shares its memory from running out of it: warns, refuses requests, then ends the server.

No limit of a container sees what CUDA takes there, and a host without memory freezes until its power is cut. 13 GB have
gone within 3 s (vllm-project/vllm#56824), so what counts is what would be left by the time that ending has helped.
"""

import ctypes
import os
import threading
import time
from collections import deque
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from . import liveness, memory, private_files, readings, state
from .redaction import say

GB = memory.GB
EVERY, REACTION, RECENT, WARN_EVERY = 0.1, 2.0, 10.0, 60.0
"""Seconds between two looks, from a look until memory is free again, that a failed allocation of the driver counts, and
between warnings."""
HALF = 3
"""Looks in which memory must fall, and then again in as many: one large allocation is no fall that goes on."""
PRESSURE = 40.0
"""Per cent of the last ten seconds in which all processes waited for memory."""
WARNING, REFUSING = 2.0, 1.5
"""Multiples of MEMORY_FLOOR: with less there is a warning, and requests are refused."""
KERNEL_LOG = "/dev/kmsg"
FAILURE = b"NV_ERR_NO_MEMORY"
"""How the driver says in the kernel's log that it could not allocate memory. By itself it says little: starts that
succeed have had dozens, and one that failed none (vllm-project/vllm#56824)."""
LOCK_CURRENT_PAGES = 1


class Guarded(NamedTuple):
    """What the guard keeps."""

    floor: int
    """MEMORY_FLOOR in bytes; 0 for no guard."""
    planned: int | None
    """The bytes that are left once the server has taken what it shall take: until then, it may take it fast."""

    unified: bool
    """Whether the GPU shares the host's memory."""

    @property
    def alarmed_below(self) -> int:
        """With more left than this, a fall is no danger."""
        return memory.KNOWN.host_reserve if self.planned is None else min(self.planned, memory.KNOWN.host_reserve)


class Fall:
    """How fast memory goes."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=2 * HALF + 1)

    def see(self, now: float, available: int) -> float:
        """Take in what is available; return the bytes that are lost each second, if memory goes on falling."""
        self._seen.append((now, available))
        if len(self._seen) <= 2 * HALF:
            return 0.0
        ends = [self._seen[number] for number in (0, HALF, 2 * HALF)]
        lost = [(left - then) / (later - at) for (at, left), (later, then) in pairwise(ends)]
        return max(0.0, min(lost))


class DriverLog:
    """Counts the driver's failed allocations, where the kernel's log can be read."""

    def __init__(self, path: str = "") -> None:
        path, self.problem, self._file = path or KERNEL_LOG, "", -1
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self.problem = f"{path}: {error.strerror}"

    def failures(self) -> int:
        """Return how many there are since the last call."""
        found = 0
        with suppress(OSError):  # BlockingIOError once all has been read
            while self._file >= 0 and (line := os.read(self._file, 8192)):
                found += line.count(FAILURE)
        return found


def verdict(left: float, waits: float, floor: int, *, failing: bool = False) -> str:
    """Return what to do about the memory that will be left: nothing, `warn`, `refuse` new requests or `end`."""
    if not floor or left >= WARNING * floor:
        return ""
    if left < floor or waits >= PRESSURE or failing:
        return "end"
    return "refuse" if left < REFUSING * floor else "warn"


def pressure(path: str = "/proc/pressure/memory") -> float:
    """Return the share of the last ten seconds in which everything waited for memory, in per cent; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        full = next(line for line in Path(path).read_text("ascii").splitlines() if line.startswith("full"))
        return float(full.split("avg10=")[1].split()[0])
    return 0.0


class Guard:
    """Looks at the memory again and again; the caller has the clock."""

    def __init__(self, guarded: Guarded, server: int, log: DriverLog) -> None:
        self._guarded, self._server, self._log = guarded, server, log
        self._fall, self._warned = Fall(), -WARN_EVERY
        self._failed, self._failed_at = 0, -RECENT

    def look(self, now: float) -> None:
        """Look once; warn, refuse requests or end the server before the host freezes."""
        available = readings.memory()[1]
        if available is None:
            return
        floor, rate, failures = self._guarded.floor, self._fall.see(now, available), self._log.failures()
        self._failed, self._failed_at = self._failed + failures, now if failures else self._failed_at
        recent = now - self._failed_at < RECENT
        falling = rate if available < self._guarded.alarmed_below else 0.0
        expected = available - falling * REACTION
        waits = pressure() if expected < WARNING * floor else 0.0
        decision, refusing = verdict(expected, waits, floor, failing=recent), private_files.exists(state.SHORT)
        text = f"{available / GB:.1f} GB of memory are left"
        if not decision:
            if refusing:
                private_files.forget(state.SHORT)
                say(f"{text}: accepting requests again")
            elif failures and now - self._warned >= WARN_EVERY:
                self._warn(now, f"WARNING: the driver could not allocate memory ({self._failed} times); {text}")
            return
        text += f" (MEMORY_FLOOR is {floor // GB})"
        text += f", {falling / GB:.1f} GB less each second" if falling >= GB / 10 else ""
        text += f", and everything waited for memory in {waits:.0f} % of the last 10 s"
        text += f"; the driver failed to allocate some {self._failed} times" if self._failed else ""
        if decision == "end":
            say(f"{text}: ending the server with code {liveness.MEMORY}, before the host freezes")
            liveness.end(self._server, liveness.MEMORY)
            return
        if now - self._warned >= WARN_EVERY:
            self._warn(now, f"WARNING: {text}: lower GPU_MEMORY_UTILIZATION, or end other programs")
        if decision == "refuse" and not refusing:
            with suppress(OSError):
                private_files.write(state.SHORT, f"The server takes no new requests: {text}.")
                say(f"{text}: new requests are refused until {WARNING * floor / GB:.0f} GB are left")

    def _warn(self, now: float, text: str) -> None:
        say(text)
        self._warned = now


def idle(guarded: Guarded) -> str:
    """Return why there is nothing to guard; empty if there is."""
    if not guarded.unified:
        return "no GPU shares it"
    if not guarded.floor:
        return "MEMORY_FLOOR is 0"
    return "" if readings.memory()[1] is not None else f"{readings.MEMINFO} does not tell how much is available"


def begin(guarded: Guarded, server: int) -> None:
    """Start to guard the memory, in a thread; say what is not guarded."""
    if reason := idle(guarded):
        say(f"the host's memory is not guarded: {reason}")
        return
    log = DriverLog()
    text = f"the server is ended before the host has less than {guarded.floor // GB} GB of memory left (MEMORY_FLOOR)"
    say(text + (f"; the driver's failed allocations are not seen: {log.problem}" if log.problem else ""))
    # Under pressure the kernel drops pages of programs, and this one would wait for its own; not everybody may do this.
    ctypes.CDLL(None).mlockall(LOCK_CURRENT_PAGES)
    threading.Thread(target=_keep_looking, args=(Guard(guarded, server, log), server), daemon=True).start()


def _keep_looking(guard: Guard, server: int) -> None:
    while os.getppid() == server:
        time.sleep(EVERY)
        guard.look(time.monotonic())
