"""Levels of smoke tests, and which of them an arch requires before its images get a tag."""

from __future__ import annotations

from collections.abc import Iterable

from imagefactory.errors import did_you_mean
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.matrix.matrix import Matrix
from imagefactory.smoke.record import LEVELS, Level


def levels_of(matrix: Matrix, arch: str) -> tuple[Level, ...]:
    """List the levels that apply to an arch's images."""
    return LEVELS if has_gpu(matrix, arch) else tuple(level for level in LEVELS if level != "gpu")


def required_levels(matrix: Matrix, arch: str) -> tuple[Level, ...]:
    """List the levels that an image of an arch has to pass before it gets a tag, according to matrix.yaml.

    A level beyond those need not run; but a record that says it failed keeps the tag away like any other
    (`SmokeRecord.missing`).
    """
    return tuple(matrix.archs[arch].smoke)


def levels_named(names: Iterable[str], matrix: Matrix, arch: str) -> tuple[Level, ...]:
    """Read the levels that a user names, in the order in which they run; default: all of the arch."""
    names = [name.strip() for word in names for name in word.split(",") if name.strip()]
    for name in names:
        if name not in LEVELS:
            raise UnknownNameError(
                f"There is no level {name!r}.",
                where="the --level option",
                why=f"Smoke tests have the levels {', '.join(LEVELS)}.",
                fix=did_you_mean(name, LEVELS).capitalize(),
            )
    return tuple(level for level in LEVELS if level in names) if names else levels_of(matrix, arch)


def has_gpu(matrix: Matrix, arch: str) -> bool:
    """Check whether an arch has a GPU."""
    return matrix.archs[arch].capability is not None
