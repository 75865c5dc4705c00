"""Where the seconds of a start went: from vLLM's log lines, and from the clock of this program's own process."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

_LINE = re.compile(r"(\d+\.\d+) (.*)")
"""A line of vLLM's log, after the time at which it was logged."""
_ENGINE = re.compile(r"init engine \(.*\) took ([\d.]+) s")
"""vLLM's own figure for what follows the weights: profiling, compiling, CUDA graphs, kernels."""
UNKNOWN = "unknown"


class Moments(NamedTuple):
    """Moments on the monotonic clock, which all processes share; None where one cannot be seen."""

    began: float | None
    """The program's process started."""
    became_vllm: float | None
    imported: float | None = None
    """vLLM read its command line."""
    loading: float | None = None
    loaded: float | None = None
    captured: float | None = None
    """The engine was ready: compiled, CUDA graphs captured, kernels warmed up."""
    ready: float | None = None
    warm: float | None = None
    """The warm-up requests were answered."""


def process_start() -> float | None:
    """Return when this process started; None if the kernel does not say."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - see image.py
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    # A sandbox may count the one from another moment than the other.
    return time.monotonic() - age if 0 <= age < 3600 else None  # noqa: PLR2004 - checks take seconds


def read(lines: Iterable[str], moments: Moments) -> Moments:
    """Add what vLLM's log tells; of several processes, the first to begin and the last to end count."""
    for time_and_text in filter(None, map(_LINE.match, lines)):
        moment, text = float(time_and_text[1]), time_and_text[2]
        if text.startswith("non-default args") and moments.imported is None:
            moments = moments._replace(imported=moment)
        elif text.startswith(("Starting to load model", "Loading model from")) and moments.loading is None:
            moments = moments._replace(loading=moment)
        elif engine := _ENGINE.match(text):
            moments = moments._replace(loaded=moment - float(engine[1]), captured=moment)
    return moments


def describe(moments: Moments, *, warm_up: bool) -> str:
    """Describe a start in one line; what lies between two moments that were not both seen is unknown."""
    steps = {
        "checks": (moments.began, moments.became_vllm),
        "imports": (moments.became_vllm, moments.imported),
        "engine": (moments.imported, moments.loading),
        "weights": (moments.loading, moments.loaded),
        "graphs": (moments.loaded, moments.captured),
        "server": (moments.captured, moments.ready),
    }
    spent = ", ".join(f"{name} {_seconds(*ends)}" for name, ends in steps.items())
    warming = _seconds(moments.ready, moments.warm) if warm_up else "off"
    return f"start in seconds: {spent}; ready {_seconds(moments.began, moments.ready)}; warm-up {warming}"


def _seconds(start: float | None, end: float | None) -> str:
    return UNKNOWN if start is None or end is None or end < start else f"{end - start:.1f}"
