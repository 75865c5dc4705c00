"""Options are read before any work starts: numbers, paths, and options that exclude each other.

Numbers arrive as text. Invoke would convert them itself, but says neither which option was wrong nor why.
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
"""Processes that may be asked for; more would only fight for memory."""


def whole_number(option: str, text: str, *, least: int = 0, most: int = _MOST) -> int | None:
    """Read a whole number; None when the option was not given."""
    if not text.strip():
        return None
    # int() would take 1_0, and digits of every script.
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
    """Read a number that is not negative; None when the option was not given."""
    if not text.strip():
        return None
    try:
        # float() would take 1_0, and digits of every script.
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if 0 <= value <= most:  # NaN is not
        return value
    raise _no_number(option, text, f"a number from 0 to {most}")


def folder(option: str, text: str) -> Path:
    """Read the path of a folder that has to exist, and to be readable."""
    path = _existing(option, text)
    if not path.is_dir():
        raise PathUnusableError(
            f"{_short(path)} is not a folder.",
            where=option,
            why="A folder is needed here.",
            fix="Name the folder, not a file in it.",
        )
    return path


def file(option: str, text: str) -> Path:
    """Read the path of a file that has to exist, and to be readable."""
    path = _existing(option, text)
    if path.is_dir():
        raise PathUnusableError(
            f"{_short(path)} is a folder.",
            where=option,
            why="A file is needed here.",
            fix="Name a file in it.",
        )
    return path


def new_file(option: str, text: str) -> Path:
    """Read the path of a file that is going to be written: its folder has to exist, and to be writable."""
    path = _path(option, text)
    if path.is_dir():
        raise OutputError(
            "A folder is in the way.",
            where=f"{option} {_short(path)}",
            why="A file is going to be written here.",
            fix="Name a file in it, such as " + str(path / "image.tar"),
        )
    parent = path.parent
    if not parent.is_dir():
        raise OutputError(
            "There is no such folder.",
            where=f"{option} {_short(path)}",
            why=f"{_short(parent)} does not exist, or is not a folder.",
            fix="Make it first, or name a file in another folder.",
        )
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise OutputError(
            "Nothing can be written there.",
            where=f"{option} {_short(path)}",
            why=f"{_short(parent)} may not be written to.",
            fix="Change its permissions, or name a file in another folder.",
        )
    return path


def at_most_one(**given: object) -> None:
    """Refuse options that contradict each other, by their names in Python."""
    named = [f"--{name.strip('_').replace('_', '-')}" for name, value in given.items() if value]
    if len(named) > 1:
        raise OptionError(
            f"{' and '.join(named)} do not go together.",
            where="the command line",
            why="Each of them says what the command is to do.",
            fix="Give one of them.",
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
            fix="Check the path; it starts from the folder that you are in.",
        ) from None
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise NotPermittedError(
            f"{_short(path)} cannot be read.",
            where=option,
            why="Its permissions do not allow it.",
            fix="Look at owner and permissions with `ls -ld`.",
        )
    return path


def _path(option: str, text: str) -> Path:
    if not text.strip():
        raise OptionError(
            "A path is empty.", where=option, why="It names nothing.", fix="Give a path, or leave it out."
        )
    return expand_home(text, option).absolute()


def _no_number(option: str, text: str, wanted: str) -> OptionError:
    return OptionError(
        f"{option} cannot be {text[:_SHOWN]!r}.",
        where=f"the {option} option",
        why=f"It has to be {wanted}.",
        fix="Give such a number, or leave the option out.",
    )


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 4 * _SHOWN else f"{text[: 4 * _SHOWN]}…"
