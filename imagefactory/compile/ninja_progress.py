"""Reads the progress of a compile from the `[12/345]` that ninja prints for each step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from imagefactory.compile.estimate import ObjectWork

_STEP = re.compile(r"^\[(\d+)/(\d+)\] ?(.*)")


@dataclass(frozen=True)
class CompileProgress:
    """The state of a compile at one moment."""

    done: int
    total: int
    elapsed: float
    """Seconds since this run of ninja started."""
    here: int
    """Objects made by this run; those of earlier runs took none of its time."""
    work: ObjectWork | None = None
    """What the objects have taken and will take, if that is known."""

    @property
    def left(self) -> float | None:
        """The estimated seconds left: by the work, else at the current pace; None before anything is done."""
        if self.work is not None:
            return self.work.remaining
        if not self.here or not self.elapsed:
            return None
        return self.elapsed / self.here * (self.total - self.done)


@dataclass
class NinjaReader:
    """Reads the output of one or more consecutive runs of ninja (CMake's own checks run it, too)."""

    clock: Callable[[], float] = time.monotonic
    work: Callable[[], ObjectWork | None] = lambda: None
    _silent: float | None = None
    """The time of the last line that is not ninja's, which is when the next step started."""
    _began: float | None = None
    _base: int = 0
    _last: tuple[int, int] = (0, 0)
    objects: int = field(default=0, init=False)
    """The steps done by this compile, over all runs of ninja."""
    group_done: bool = field(default=False, init=False)
    """Whether ninja compiled the group of objects that it was asked for, and stopped before linking."""

    def read(self, line: str) -> CompileProgress | None:
        """Read a line, and return the progress if it is one of ninja's."""
        match = _STEP.match(line)
        if match is None:
            self.group_done |= line.startswith("FACTORY-GROUP ")
            self._silent = self.clock()
            return None
        done, total = int(match[1]), int(match[2])
        before, size = self._last
        if self._began is None or total != size or done < before:
            self._began = self.clock() if self._silent is None else self._silent
            self._base = done - 1
        self._last = (done, total)
        self.objects += 1
        elapsed = self.clock() - self._began
        return CompileProgress(done, total, elapsed, done - self._base, self.work())


def duration(seconds: float) -> str:
    """Format a duration for people: 45 s, 12 min, 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"  # noqa: PLR2004 - an hour
