"""Checks of options before any work starts: numbers, paths, and options that exclude each other.

Numbers arrive as text: when invoke converts them, its errors name neither the option nor the reason.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from imagefactory.environment.paths import expand_home
from imagefactory.errors.commands import OptionError
from imagefactory.errors.store import OutputError
from imagefactory.errors.system import FileMissingError, NotPermittedError, PathUnusableError

_MOST = 1_000_000
_SHOWN = 60
MOST_AT_ONCE = 1024
"""The most processes to accept; more would only compete for memory."""


def whole_number(option: str, text: str, *, least: int = 0, most: int = _MOST) -> int | None:
    """Return a whole number, or None if the option was not given."""
    if not text.strip():
        return None
    # int() would accept 1_0 and the digits of every script.
    digits = text.strip().removeprefix("+")
    if (
        digits.isascii()
        and digits.isdecimal()
        and len(digits) <= len(str(most))
        and least <= int(digits) <= most
    ):
        return int(digits)
    raise _no_number(option, text, f"a whole number from {least} to {most}")


def number(option: str, text: str, *, most: float = _MOST) -> float | None:
    """Return a number of at least 0, or None if the option was not given."""
    if not text.strip():
        return None
    try:
        # float() would accept 1_0 and the digits of every script.
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if 0 <= value <= most:  # NaN is not
        return value
    raise _no_number(option, text, f"a number from 0 to {most}")


def folder(option: str, text: str) -> Path:
    """Return the path of an existing, readable folder."""
    path = _existing(option, text)
    if not path.is_dir():
        raise PathUnusableError(
            f"{_short(path)} is not a folder.",
            where=option,
            why="This option needs a folder.",
            fix="Name the folder instead of a file in it.",
        )
    return path


def file(option: str, text: str) -> Path:
    """Return the path of an existing, readable file."""
    path = _existing(option, text)
    if path.is_dir():
        raise PathUnusableError(
            f"{_short(path)} is a folder.",
            where=option,
            why="This option needs a file.",
            fix="Name a file in it.",
        )
    return path


def new_file(option: str, text: str) -> Path:
    """Return the path of a file to write, in an existing, writable folder."""
    path = _path(option, text)
    if path.is_dir():
        raise OutputError(
            "There is a folder of that name.",
            where=f"{option} {_short(path)}",
            why="A file will be written here.",
            fix="Name a file in it, such as " + str(path / "image.tar"),
        )
    parent = path.parent
    if not parent.is_dir():
        raise OutputError(
            "There is no such folder.",
            where=f"{option} {_short(path)}",
            why=f"{_short(parent)} does not exist, or is not a folder.",
            fix="Create it first, or name a file in another folder.",
        )
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise OutputError(
            "The file cannot be written.",
            where=f"{option} {_short(path)}",
            why=f"{_short(parent)} is not writable.",
            fix="Change its permissions, or name a file in another folder.",
        )
    return path


def at_most_one(**given: object) -> None:
    """Refuse options that exclude each other, given by their names in Python."""
    named = [f"--{name.strip('_').replace('_', '-')}" for name, value in given.items() if value]
    if len(named) > 1:
        raise OptionError(
            f"{' and '.join(named)} cannot be used together.",
            where="the command line",
            why="They exclude each other.",
            fix="Use only one of them.",
        )


def _existing(option: str, text: str) -> Path:
    path = _path(option, text)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise FileMissingError(
            f"There is no {_short(path)}.",
            where=option,
            why="Nothing of that name exists.",
            fix="Check the path; it is relative to the current folder.",
        ) from None
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise NotPermittedError(
            f"{_short(path)} cannot be read.",
            where=option,
            why="You do not have permission.",
            fix="Check its owner and permissions with `ls -ld`.",
        )
    return path


def _path(option: str, text: str) -> Path:
    if not text.strip():
        raise OptionError(
            "The path is empty.",
            where=option,
            why="A path is needed.",
            fix="Give a path, or leave the option out.",
        )
    return expand_home(text, option).absolute()


def _no_number(option: str, text: str, wanted: str) -> OptionError:
    return OptionError(
        f"{option} cannot be {text[:_SHOWN]!r}.",
        where=f"the {option} option",
        why=f"It has to be {wanted}.",
        fix="Give a number in that range, or leave the option out.",
    )


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 4 * _SHOWN else f"{text[: 4 * _SHOWN]}…"
