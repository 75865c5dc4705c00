"""Failures with a remedy: the base class of all, and those that the shipped modules raise.

A message has a stable name and four parts: what happened, where, why, and what to do next. `imagefactory.errors`
has the other classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Location:
    """A file, and a line in it if known."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class FactoryError(Exception):
    """A failure with a remedy. Subclasses say what can be done about it, and with which code commands exit.

    The name, such as `no-lock`, says which failure it is; documents, tests and searches refer to it.
    """

    exit_code: ClassVar[int]

    def __init__(self, name: str, what: str, *, where: Location | Path | str, why: str, fix: str) -> None:
        super().__init__(what)
        why = why.strip() or "No reason is known."  # another program may have printed nothing
        place = str(where)
        if place and not place.strip():
            place = repr(place)  # a path may consist of blanks
        for part, text in {"name": name, "what": what, "where": place, "fix": fix}.items():
            if not text.strip():
                raise ValueError(f"{type(self).__name__} without its part {part!r}")
        self.name = name
        self.what = what
        self.where = place
        self.why = why
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions with keyword arguments cannot be pickled otherwise; worker processes need that.
        return partial(type(self), where=self.where, why=self.why, fix=self.fix), (self.name, self.what)

    def __str__(self) -> str:
        return f"{self.what}\n  where: {self.where}\n  why:   {self.why}\n  next:  {self.fix}"


class UsageError(FactoryError):
    """The command line or a name in it is wrong: correct it, and run the command again."""

    exit_code = 2


class ConfigError(FactoryError):
    """A file that people write, such as matrix.yaml, is wrong: edit it."""

    exit_code = 3


class ModError(FactoryError):
    """A mod is wrong, or does not fit the version it is applied to: edit the mod."""

    exit_code = 4


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the names nearest to a mistyped one, or list them all if none is near."""
    names = sorted(known)
    near = get_close_matches(word, names, n=3, cutoff=0.5)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"Known: {', '.join(names)}" if names else "None is known."
