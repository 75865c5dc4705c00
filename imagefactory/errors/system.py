"""What the operating system refuses, and files that cannot be what they should be: 18, and 55 to 58.

`from_system` turns the exceptions of Python's library into these. Where the code knows more about a failure, it
raises an error of its own before.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from types import TracebackType

from imagefactory.errors import FactoryError
from imagefactory.errors.store import DiskFullError


class UnreadableTextError(FactoryError):
    """A file is not UTF-8 text, or is nested so deeply that it cannot be read."""

    exit_code = 18


class NotPermittedError(FactoryError):
    """A file or folder may not be read or written: its owner, its permissions or its disk forbid it."""

    exit_code = 55
    about_the_machine = True


class PathUnusableError(FactoryError):
    """A path cannot be used: a file stands where a folder is needed, it is too long, or names an unknown user."""

    exit_code = 56


class FileMissingError(FactoryError):
    """A file, folder or program that is needed does not exist."""

    exit_code = 57


class SystemFailureError(FactoryError):
    """The system fails in a way that has nothing to do with the factory: memory, disk errors, network."""

    exit_code = 58


_ANOTHER_PLACE = "name another place."
_KINDS: dict[int, tuple[type[FactoryError], str, str]] = {
    errno.EACCES: (
        NotPermittedError,
        "There is no access to {}.",
        f"Look at owner and permissions with `ls -ld`, or {_ANOTHER_PLACE}",
    ),
    errno.EPERM: (
        NotPermittedError,
        "This may not be done to {}.",
        f"Look at owner and permissions with `ls -ld`, or {_ANOTHER_PLACE}",
    ),
    errno.EROFS: (NotPermittedError, "{} cannot be written to.", f"Mount it writable, or {_ANOTHER_PLACE}"),
    errno.ENOENT: (FileMissingError, "There is no {}.", "Check the path; if it is a program, install it."),
    errno.ENOTDIR: (
        PathUnusableError,
        "{} is no folder, or lies below something that is none.",
        f"Move the file away that is in the way, or {_ANOTHER_PLACE}",
    ),
    errno.EISDIR: (
        PathUnusableError,
        "{} is a folder, where a file is needed.",
        f"Remove it, or {_ANOTHER_PLACE}",
    ),
    errno.EEXIST: (
        PathUnusableError,
        "{} is in the way.",
        f"Move it away, or {_ANOTHER_PLACE}",
    ),
    errno.ENOTEMPTY: (PathUnusableError, "{} is not empty.", f"Empty it, or {_ANOTHER_PLACE}"),
    errno.ENAMETOOLONG: (PathUnusableError, "The path {} is too long.", f"Shorten it, or {_ANOTHER_PLACE}"),
    errno.ELOOP: (
        PathUnusableError,
        "{} is a link that leads in a circle.",
        f"Mend the link, or {_ANOTHER_PLACE}",
    ),
    errno.ENOSPC: (
        DiskFullError,
        "There is no space left for {}.",
        "Free some space, or run `invoke clean`.",
    ),
    errno.EDQUOT: (DiskFullError, "Your quota is used up: {}.", "Free some space, or run `invoke clean`."),
}
_SHOWN = 200
"""Characters of a path that a headline shows; the place is named in full."""
_READERS = ("json", "tomllib", "ast", "yaml")
"""Modules that read text and call themselves for every level of it."""


def from_system(  # noqa: PLR0911 - one for each kind of exception
    error: BaseException, where: str, cache: Path | None = None
) -> FactoryError | None:
    """Turn an exception into an error with four parts, or give None for one that is nobody's fault but ours.

    Args:
        error: what was raised.
        where: what the user asked for, for failures that name no path.
        cache: the folder of the cache; who cannot use it is told of FACTORY_CACHE.
    """
    match error:
        case OSError():
            return _from_os(error, where, cache)
        case UnicodeError():
            return UnreadableTextError(
                "Something that has to be text is not.",
                where=_path_being_read(error.__traceback__) or where,
                why=f"{str(error)[:_SHOWN]}.",
                fix="Write it in UTF-8.",
            )
        case ValueError() if _innermost(error.__traceback__) in _READERS:
            return UnreadableTextError(
                "Something that was read is damaged.",
                where=_path_being_read(error.__traceback__) or where,
                why=f"{str(error)[:_SHOWN]}.",
                fix="Restore the file; if it belongs to the cache, remove it, and it is made again.",
            )
        case RecursionError() if _is_reading(error.__traceback__):
            return UnreadableTextError(
                "Something that was read is nested too deeply.",
                where=_path_being_read(error.__traceback__) or where,
                why="Nobody writes that many levels; the file is damaged, or made to do harm.",
                fix="Restore the file, or get it from somebody else.",
            )
        case ValueError() if "null byte" in str(error) or "null character" in str(error):
            return PathUnusableError(
                "A path holds a NUL character.",
                where=where,
                why="No system has such files.",
                fix="Take it out of the path.",
            )
        case ValueError() if _innermost(error.__traceback__) == "urllib":
            return SystemFailureError(
                "Something that has to be an address is not.",
                where=where,
                why=f"{error}.",
                fix="Check the URLs in variables and options; else it is in a server's answer: try later.",
            )
        case subprocess.SubprocessError():
            return SystemFailureError(
                "Another program failed.",
                where=_program(error) or where,
                why=_ending(error),
                fix="Run it by itself to see what is wrong with it.",
            )
        case MemoryError():
            return SystemFailureError(
                "Memory ran out.",
                where=where,
                why="The system has none left, or this process may not have more (`ulimit -v`).",
                fix="Close other programs, or allow more.",
            )
        case _:
            return None


def _from_os(error: OSError, where: str, cache: Path | None) -> FactoryError:
    named = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    place = named[-1] if named and error.errno == errno.EEXIST else named[0] if named else ""
    shown = place if len(place) <= _SHOWN else f"{place[:_SHOWN]}…"
    why = f"{error.strerror}." if error.strerror else f"{type(error).__name__}: {error}"
    kind, what, fix = _KINDS.get(
        error.errno or 0,
        (SystemFailureError, "The system failed at {}.", "Try again; if it stays, look at the system's log."),
    )
    if place and cache is not None and Path(place).is_relative_to(cache):
        fix = (
            "It belongs to the cache: set FACTORY_CACHE to a folder that you may write to, or mend this one."
        )
    if not place and kind is DiskFullError:
        where = f"standard output, or a file of {where}"
    return kind(what.format(shown or "what was asked for"), where=place or where, why=why, fix=fix)


def _frames(traceback: TracebackType | None) -> list[TracebackType]:
    found: list[TracebackType] = []
    while traceback is not None:
        found.append(traceback)
        traceback = traceback.tb_next
    return found


def _is_reading(traceback: TracebackType | None) -> bool:
    """Determine whether too deep a recursion happened in one of Python's parsers: then the text is at fault."""
    names = {step.tb_frame.f_globals.get("__name__", "").partition(".")[0] for step in _frames(traceback)}
    return not names.isdisjoint(_READERS)


def _innermost(traceback: TracebackType | None) -> str:
    """Name the package in which an exception was raised."""
    steps = _frames(traceback)
    return steps[-1].tb_frame.f_globals.get("__name__", "").partition(".")[0] if steps else ""


def _path_being_read(traceback: TracebackType | None) -> str:
    """Find the file whose content was being read; the exceptions of decoders do not name it."""
    for step in reversed(_frames(traceback)):
        for value in step.tb_frame.f_locals.values():
            if isinstance(value, Path) and value.is_file():
                return str(value)
    return ""


def _program(error: subprocess.SubprocessError) -> str:
    command = getattr(error, "cmd", "")
    return str(command if isinstance(command, str) else next(iter(command), ""))


def _ending(error: subprocess.SubprocessError) -> str:
    match error:
        case subprocess.CalledProcessError():
            return f"It ended with code {error.returncode}."
        case subprocess.TimeoutExpired():
            return f"It did not end within {error.timeout:.0f} s."
        case _:
            return f"{type(error).__name__}."
