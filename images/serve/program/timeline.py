"""Where the seconds of a start went: from the server's log lines, and from the clock of this program's own process."""

import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_LINE = re.compile(r"(\d+\.\d+) (.*)")
"""A line of the server's log, after the time at which it was logged."""
UNKNOWN = "unknown"


class Moments(NamedTuple):
    """Moments on the monotonic clock, which all processes share; None where one cannot be seen."""

    began: float | None
    """The program's process started."""
    became_server: float | None
    imported: float | None = None
    """The server read its command line."""
    loading: float | None = None
    loaded: float | None = None
    compiled: float | None = None
    """When torch.compile had ended, had it followed the weights at once; None if the server does not say."""
    captured: float | None = None
    """The engine was ready: compiled, CUDA graphs captured, kernels warmed up."""
    listening: float | None = None
    """The server took requests."""
    kernels: float | None = None
    """What was compiled beside the start was there; None if nothing was."""
    warm: float | None = None
    """The warm-up requests were answered."""
    ready: float | None = None


def process_start() -> float | None:
    """Return when this process started; None if the kernel does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    # A sandbox may count the one from another moment than the other.
    return time.monotonic() - age if 0 <= age < 3600 else None  # noqa: PLR2004 - checks take seconds


def timed(lines: Iterable[str]) -> Iterator[tuple[float, str]]:
    """Yield the lines of the server's log, each with its moment."""
    for found in filter(None, map(_LINE.match, lines)):
        yield float(found[1]), found[2]


def describe(moments: Moments, *, warm_up: bool) -> str:
    """Describe a start in one line; what lies between two moments that were not both seen is unknown."""
    steps = {
        "checks": (moments.began, moments.became_server),
        "imports": (moments.became_server, moments.imported),
        "engine": (moments.imported, moments.loading),
        "weights": (moments.loading, moments.loaded),
        "compile": (moments.loaded, moments.compiled),
        "graphs": (moments.compiled or moments.loaded, moments.captured),
        "server": (moments.captured, moments.listening),
        "kernels": (moments.listening, moments.kernels),
        "warm-up": (moments.kernels or moments.listening, moments.warm),
    }
    if moments.compiled is None:
        del steps["compile"]
    if moments.kernels is None:
        del steps["kernels"]
    spent = {name: _seconds(*ends) for name, ends in steps.items()} | ({} if warm_up else {"warm-up": "off"})
    told = ", ".join(f"{name} {seconds}" for name, seconds in spent.items())
    return f"start in seconds: {told}; ready {_seconds(moments.began, moments.ready)}"


def _seconds(start: float | None, end: float | None) -> str:
    return UNKNOWN if start is None or end is None or end < start else f"{end - start:.1f}"
