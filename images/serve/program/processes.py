"""Looks at the server's processes: whether they work, and what they were doing when nothing moved any more."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .redaction import say

STACKS = int(signal.SIGRTMIN) + 9
"""The signal on which the hook has a Python process of the server write its stack; no server uses it."""
WORKED, MOVED, FAULTS = 0.04, 100_000, 10
"""From one look to the next, less is the waking of processes that wait: the share of a core that one of them takes (a
worker of vLLM that waits for its engine takes 0.01), bytes read or written, and pages read from a disk."""
TOLD = 12
"""Processes whose stacks are told at most."""
STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "waiting for the kernel", "Z": "ended"}
_TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """What the kernel says about a process."""

    name: str
    state: str
    parent: int
    faults: int
    cpu: float
    """Seconds, with those of its children that have ended."""


def read(number: int) -> Process:
    """Read about a process; raise OSError if it has ended."""
    name, _, rest = Path(f"/proc/{number}/stat").read_text("utf-8", "replace").rpartition(")")
    words = rest.split()
    spent = sum(map(int, words[11:15])) / _TICKS
    return Process(name.partition("(")[2], words[0], int(words[1]), int(words[9]), spent)


def tree(top: int, without: Iterable[int] = ()) -> dict[int, Process]:
    """Return a process and all below it, but those `without` and what is below them."""
    everything: dict[int, Process] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            everything[int(path.name)] = read(int(path.name))
    found, before = {top}, set[int]()
    while found != before:
        before, found = found, found | {number for number, each in everything.items() if each.parent in found}
        found -= set(without)
    return {number: everything[number] for number in sorted(found) if number in everything}


class Activity:
    """Sees whether a server that starts gets on: whether its processes compute, read, write or download.

    A slow disk, a long download or a compiler gets on; processes that only wait for each other do not.
    """

    def __init__(self, server: int, downloads: str = "") -> None:
        self._server, self._downloads = server, downloads
        self._looked, self._before = time.monotonic(), self._figures()

    def moved(self) -> bool:
        """Whether something moved since the last look."""
        now, before, seconds = self._figures(), self._before, time.monotonic() - self._looked
        self._looked, self._before = time.monotonic(), now
        (cpu, *figures), (cpu_before, *figures_before) = now, before
        worked = any(cpu[each] - cpu_before.get(each, 0.0) >= WORKED * seconds for each in cpu)
        # A process less has taken its figures with it: any large difference is a movement.
        data, faults, loaded = (abs(new - old) for new, old in zip(figures, figures_before, strict=True))
        return worked or data >= MOVED or faults >= FAULTS or loaded > 0

    def _figures(self) -> tuple[dict[int, float], int, int, int]:
        found = tree(self._server, without=(os.getpid(),))
        return (
            {number: each.cpu for number, each in found.items()},
            sum(_data(number) for number in found),
            sum(each.faults for each in found.values()),
            _incomplete(self._downloads),
        )


def _data(number: int) -> int:
    """Return the bytes that a process has read and written, also of files that are mapped."""
    with suppress(OSError, ValueError):
        fields = dict(line.split(": ") for line in Path(f"/proc/{number}/io").read_text("ascii").splitlines())
        return sum(int(fields[name]) for name in ("rchar", "wchar", "read_bytes"))
    return 0


def _incomplete(cache: str) -> int:
    """Return the bytes of unfinished downloads: another container may have the lock, and this one waits for it."""
    found = 0
    for path in Path(cache).glob("models--*/blobs/*.incomplete") if cache else ():
        with suppress(OSError):
            found += path.stat().st_size
    return found


def tell(server: int) -> None:
    """Write into the log what the server's processes are doing; those of Python write their stacks themselves."""
    before = tree(server, without=(os.getpid(),))
    time.sleep(1)
    for number, process in list(tree(server, without=(os.getpid(),)).items())[:TOLD]:
        spent = process.cpu - before[number].cpu if number in before else 0.0
        doing = STATES.get(process.state, f"{spent:.0%} of a core")
        catches = process.state in "RS" and _catches(number)
        say(f"process {number} ({process.name}): {doing}{'; its newest calls:' if catches else ''}")
        if catches:
            with suppress(OSError):
                os.kill(number, STACKS)
            time.sleep(0.2)  # its lines come before those of the next


def _catches(number: int) -> bool:
    """Whether a process has a handler for the signal, which would end any other."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{number}/status").read_text("utf-8", "replace")
        return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (STACKS - 1) & 1)
    return False
