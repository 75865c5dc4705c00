"""Turns exceptions of the operating system and of parsers into failures with a remedy.

Code that knows more about a failure raises its own error first.
"""

from __future__ import annotations

import errno
import os
import subprocess
import traceback
from pathlib import Path

from imagefactory.errors import FactoryError, InputError, MachineError

_KINDS = {
    "not-permitted": (
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "Check owner and permissions with `ls -ld`, or use another path.",
    ),
    "no-file": ((errno.ENOENT,), "Check the path; if it is a program, install it."),
    "bad-path": (
        (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.ELOOP),
        "Use another path, or move away what is in the way.",
    ),
    "disk-full": ((errno.ENOSPC, errno.EDQUOT), "Free some space, or run `./inv clean`."),
    "system-failed": ((), "Try again; if it persists, check the system's log."),
}
_SHOWN = 200
_PARSERS = {"json", "tomllib", "ast", "yaml"}


def from_system(error: BaseException, where: str, cache: Path | None = None) -> FactoryError | None:
    """Turn an exception into an error with four parts, or return None if it is a bug.

    `where` is what the user asked for, for failures that name no path; those in the cache get advice about it.
    """
    match error:
        case OSError():
            return _from_os(error, where, cache)
        case UnicodeError() | ValueError() | RecursionError() if _in_parser(error):
            deep = isinstance(error, RecursionError)
            return InputError(
                "unreadable-text",
                "A file or response is damaged.",
                where=_path_being_read(error) or where,
                why="It is nested too deeply." if deep else f"{str(error)[:_SHOWN]}.",
                fix="Restore the file; if it is in the cache, delete it, and it will be created again.",
            )
        case subprocess.SubprocessError():
            called = getattr(error, "cmd", "")
            return MachineError(
                "system-failed",
                "Another program failed.",
                where=str(called if isinstance(called, str) else next(iter(called), "")) or where,
                why=f"{type(error).__name__}: {str(error)[:_SHOWN]}",
                fix="Run it on its own to see what is wrong.",
            )
        case MemoryError():
            return MachineError(
                "system-failed",
                "Memory ran out.",
                where=where,
                why="The system has none left, or this process has reached its limit (`ulimit -v`).",
                fix="Close other programs, or raise the limit.",
            )
        case _:
            return None


def _from_os(error: OSError, where: str, cache: Path | None) -> FactoryError:
    named = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    place = named[-1] if named and error.errno == errno.EEXIST else named[0] if named else ""
    name = next((kind for kind, (numbers, _) in _KINDS.items() if error.errno in numbers), "system-failed")
    fix = _KINDS[name][1]
    if place and cache is not None and Path(place).is_relative_to(cache):
        fix = "It is in the cache: set FACTORY_CACHE to a folder that you can write to, or repair this one."
    if not place and name == "disk-full":
        where = f"standard output, or a file of {where}"
    return MachineError(
        name,
        f"{place[:_SHOWN]} cannot be used." if place else "The system refused a request.",
        where=place or where,
        why=f"{error.strerror}." if error.strerror else f"{type(error).__name__}: {error}",
        fix=fix,
    )


def _in_parser(error: BaseException) -> bool:
    """Whether text that came from elsewhere is at fault, not code of ours."""
    passed = [
        frame.f_globals.get("__name__", "").partition(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    if isinstance(error, RecursionError):
        return not _PARSERS.isdisjoint(passed)
    return isinstance(error, UnicodeError) or bool(passed and passed[-1] in _PARSERS)


def _path_being_read(error: BaseException) -> str:
    """Return the file whose content was being read; decoders do not name it in their exceptions."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        for value in frame.f_locals.values():
            if isinstance(value, Path) and value.is_file():
                return str(value)
    return ""
