"""The options that commands share: help texts, and checks that run before any work starts.

Numbers arrive as text: when invoke converts them, its errors name neither the option nor the reason.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from imagefactory.cli.system_failures import from_system
from imagefactory.errors import MachineError, UsageError
from imagefactory.store.paths import expand_home

T = TypeVar("T", int, float)
TARGETS = "what to act on: MODEL[@VERSION][/ARCH[/MACHINE]], a glob, or all; repeatable"
TARGET = f"{TARGETS} (default: the first model)"
ONE_TARGET = "which image: MODEL[@VERSION][/ARCH[/MACHINE]] (default: the first model)"
VLLM = "the vLLM version (default: the matrix's)"
UPGRADE = "upgrade this package (or base, or all) to its newest version; repeatable"
WORKERS = "build this many layers at the same time (default: one per core)"
SIGNING_KEY = (
    "sign with this private key (default: FACTORY_SIGNING_KEY, your own key, or the CI job's identity)"
)
JSON = "print JSON"
MARKDOWN = "print Markdown"
_MOST = 1_000_000
_SHOWN = 60
_MOST_AT_ONCE = 1024  # more processes would only compete for memory


def whole_number(option: str, text: str, *, least: int = 0, most: int = _MOST) -> int | None:
    """Return a whole number, or None if the option was not given."""
    return _number(option, text, int, least=least, most=most)


def processes(option: str, text: str) -> int | None:
    """Return how many processes to run at the same time, or None if the option was not given."""
    return whole_number(option, text, least=1, most=_MOST_AT_ONCE)


def number(option: str, text: str) -> float | None:
    """Return a number of at least 0, or None if the option was not given."""
    return _number(option, text, float, least=0, most=_MOST)


def _number(option: str, text: str, kind: type[T], *, least: int, most: int) -> T | None:
    if not text.strip():
        return None
    with suppress(ValueError):
        # Python would accept 1_0 and the digits of every script.
        if text.isascii() and "_" not in text and least <= kind(text) <= most:
            return kind(text)
    raise UsageError(
        "bad-option",
        f"{option} cannot be {text[:_SHOWN]!r}.",
        where=f"the {option} option",
        why=f"It has to be a {'whole ' if kind is int else ''}number from {least} to {most}.",
        fix="Name a number in that range, or leave the option out.",
    )


def existing(option: str, text: str, *, folder: bool) -> Path:
    """Return the path of an existing, readable folder or file."""
    path = _path(option, text)
    kind = "folder" if folder else "file"
    try:
        path.stat()
        if path.is_dir() != folder:
            raise MachineError(
                "bad-path",
                f"{_short(path)} is {'not a folder' if folder else 'a folder'}.",
                where=option,
                why=f"This option needs a {kind}.",
                fix=f"Name a {kind}.",
            )
        (os.scandir(path) if folder else path.open("rb")).close()
    except OSError as error:
        raise from_system(error, option) or error from None
    return path


def new_file(option: str, text: str) -> Path:
    """Return the path of a file to write, in an existing, writable folder."""
    path = _path(option, text)
    parent = path.parent
    if path.is_dir():
        what, why = "There is a folder of that name.", "This option needs a file."
    elif not parent.is_dir():
        what, why = "There is no such folder.", f"{_short(parent)} does not exist, or is not a folder."
    elif not os.access(path if path.exists() else parent, os.W_OK):
        what, why = "The file cannot be written.", f"{_short(parent)} is not writable."
    else:
        return path
    fix = "Name a file in a folder that exists and that you can write to."
    raise UsageError("output-unusable", what, where=f"{option} {_short(path)}", why=why, fix=fix)


def at_most_one(**given: object) -> None:
    """Raise OptionError if several of these options were given; they are named as in Python."""
    named = [f"--{name.strip('_').replace('_', '-')}" for name, value in given.items() if value]
    if len(named) > 1:
        raise UsageError(
            "bad-option",
            f"{' and '.join(named)} cannot be used together.",
            where="the command line",
            why="They exclude each other.",
            fix="Use only one of them.",
        )


def _path(option: str, text: str) -> Path:
    if text.strip():
        return expand_home(text, option).absolute()
    fix = "Name a path, or leave the option out."
    raise UsageError(
        "bad-option", "The path is empty.", where=option, why="This option needs a path.", fix=fix
    )


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 4 * _SHOWN else f"{text[: 4 * _SHOWN]}…"
