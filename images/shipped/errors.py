"""Failures of what ships: the base class of all failures, and those that mods and YAML files can meet.

A message has four parts: what happened, where, why, and what to do next. The library names them in
`imagefactory.errors`, together with its own.
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
    """Return which known names are nearest to a mistyped one, or list them all when none is near."""
    names = sorted(known)
    near = get_close_matches(word, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known: {', '.join(names)}" if names else "none is known"


class YamlSyntaxError(FactoryError):
    """The file is not YAML, or uses a part of YAML that we do not accept."""

    exit_code = 10


class DuplicateKeyError(FactoryError):
    """A key stands twice in one mapping; YAML would silently keep the last."""

    exit_code = 12


class UnknownNameError(FactoryError):
    """A target, arch, model or version that the matrix does not have."""

    exit_code = 13


class ModManifestError(FactoryError):
    """A mod.yaml is wrong: a value, a reference, a file that it names."""

    exit_code = 80


class AnchorError(FactoryError):
    """An anchor occurs not once, but never or several times."""

    exit_code = 81


class PatchError(FactoryError):
    """A diff does not fit where it says, or touches what it does not declare."""

    exit_code = 82


class ModFileError(FactoryError):
    """A file that a mod changes is missing, or one that it adds is there already."""

    exit_code = 83


class ModCheckError(FactoryError):
    """A statement of a mod does not hold in the patched tree, or holds without the mod."""

    exit_code = 84


class ModConflictError(FactoryError):
    """Two mods touch the same lines, or say that they cannot be together."""

    exit_code = 85


class ModNotApplicableError(FactoryError):
    """A mod that was named does not apply to this version."""

    exit_code = 86


class ModKeyError(FactoryError):
    """A mod.yaml has a key that mods do not know."""

    exit_code = 89


class ModPathError(FactoryError):
    """A mod names a path outside of the distribution that it changes."""

    exit_code = 90


class ModLicenceError(FactoryError):
    """A mod does not say its licence, or not in a form that an image can carry."""

    exit_code = 91


class ModVersionsError(FactoryError):
    """A version range of a mod is none, matches nothing, or says the same versions twice."""

    exit_code = 92


class ModCycleError(FactoryError):
    """Mods require each other in a circle."""

    exit_code = 93


class ModSyntaxError(FactoryError):
    """An edit leaves a file that does not compile."""

    exit_code = 94
