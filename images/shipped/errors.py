"""The base class of all errors, and the errors about mods and YAML files.

A message has four parts: what happened, where, why, and what to do next. `imagefactory.errors` exports these classes
together with those of the library.
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
    """A file, and a line in it if known."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class FactoryError(Exception):
    """A failure with a remedy. Only subclasses, which set `exit_code`, are raised."""

    exit_code: ClassVar[int]
    about_the_machine: ClassVar[bool] = False
    """Whether the machine or its network is the likely cause, so that `invoke doctor` can help."""

    def __init__(self, what: str, *, where: Location | Path | str, why: str, fix: str) -> None:
        super().__init__(what)
        why = why.strip() or "No reason is known."  # another program may have printed nothing
        place = str(where)
        if place and not place.strip():
            place = repr(place)  # a path may consist of blanks
        for part, text in {"what": what, "where": place, "fix": fix}.items():
            if not text.strip():
                raise ValueError(f"{type(self).__name__} without its part {part!r}")
        self.what = what
        self.where = place
        self.why = why
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions with keyword arguments cannot be pickled otherwise; worker processes need that.
        return partial(type(self), where=self.where, why=self.why, fix=self.fix), (self.what,)

    def __str__(self) -> str:
        return f"{self.what}\n  where: {self.where}\n  why:   {self.why}\n  next:  {self.fix}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the names nearest to a mistyped one, or list them all if none is near."""
    names = sorted(known)
    near = get_close_matches(word, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known: {', '.join(names)}" if names else "none is known"


class YamlSyntaxError(FactoryError):
    """A file is not YAML, or uses a feature of YAML that is not supported."""

    exit_code = 10


class DuplicateKeyError(FactoryError):
    """A mapping has the same key twice; YAML would silently keep the last."""

    exit_code = 12


class UnknownNameError(FactoryError):
    """A target, arch, model or version is not in the matrix."""

    exit_code = 13


class ModManifestError(FactoryError):
    """A mod.yaml has a wrong value, reference or file name."""

    exit_code = 80


class AnchorError(FactoryError):
    """An anchor does not occur exactly once."""

    exit_code = 81


class PatchError(FactoryError):
    """A diff does not fit at its line numbers, or touches files that it does not declare."""

    exit_code = 82


class ModFileError(FactoryError):
    """A file that a mod changes is missing, or one that it adds exists."""

    exit_code = 83


class ModCheckError(FactoryError):
    """A check of a mod fails in the patched tree, or passes without the mod."""

    exit_code = 84


class ModConflictError(FactoryError):
    """Two mods touch the same lines, or declare a conflict."""

    exit_code = 85


class ModNotApplicableError(FactoryError):
    """A selected mod does not apply to this version."""

    exit_code = 86


class ModKeyError(FactoryError):
    """A mod.yaml has an unknown key."""

    exit_code = 89


class ModPathError(FactoryError):
    """A mod names a path that is not in a package of its distribution."""

    exit_code = 90


class ModForbiddenPathError(ModPathError):
    """A mod names a path that escapes, deletes files of other layers, runs with every Python, or cannot be printed."""

    exit_code = 208


class ModTakenPathError(ModPathError):
    """A mod adds a path that a distribution or another mod has already, or one below a file."""

    exit_code = 209


class ModLicenceError(FactoryError):
    """A mod has no licence, or not as an SPDX expression."""

    exit_code = 91


class ModVersionsError(FactoryError):
    """A version range of a mod is invalid, matches nothing, or overlaps with another."""

    exit_code = 92


class ModCycleError(FactoryError):
    """Mods require each other in a circle."""

    exit_code = 93


class ModSyntaxError(FactoryError):
    """A file does not compile after an edit."""

    exit_code = 94
