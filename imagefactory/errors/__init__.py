"""Every failure a user can meet, one class and one exit code each; a module for each part of the factory.

A message has four parts: what happened, where, why, and what to do next. What the operating system says becomes one of
them, too (`system`), and whatever is left is a mistake of ours (`internal`), whose traceback goes to a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place a user can open: a file, and the line in it where that is known."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class FactoryError(Exception):
    """A failure with a remedy. Subclasses set `exit_code`; nothing raises this class itself."""

    exit_code: ClassVar[int]
    about_the_machine: ClassVar[bool] = False
    """Whether the cause is likely to be the machine or its network, which `invoke doctor` can tell more about."""

    def __init__(self, what: str, *, where: Location | Path | str, why: str, fix: str) -> None:
        super().__init__(what)
        # What another program said may be nothing; the rest is ours to write.
        why = why.strip() or "No reason is known."
        place = str(where)
        if place and not place.strip():
            place = repr(place)  # a user may name a place with nothing but blanks
        for part, text in {"what": what, "where": place, "fix": fix}.items():
            if not text.strip():
                raise ValueError(f"{type(self).__name__} without its part {part!r}")
        self.what = what
        self.where = place
        self.why = why
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments need help to travel from a worker process to its parent.
        return partial(type(self), where=self.where, why=self.why, fix=self.fix), (self.what,)

    def __str__(self) -> str:
        return f"{self.what}\n  where: {self.where}\n  why:   {self.why}\n  next:  {self.fix}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Say which known names are nearest to a mistyped one, or list them all when none is near."""
    names = sorted(known)
    near = get_close_matches(word, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known: {', '.join(names)}" if names else "none is known"
