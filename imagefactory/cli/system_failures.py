"""Turns exceptions of the operating system and of parsers into failures with a remedy.

Code that knows more about a failure raises its own error first.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from types import TracebackType

from imagefactory.errors import FactoryError, InputError, MachineError

_CHECK_ACCESS = "Check owner and permissions with `ls -ld`, or use another path."
_FREE_SPACE = "Free some space, or run `./inv clean`."
_KINDS: dict[int, tuple[str, str, str]] = {
    errno.EACCES: ("not-permitted", "Access to {} is denied.", _CHECK_ACCESS),
    errno.EPERM: ("not-permitted", "The operation on {} is not permitted.", _CHECK_ACCESS),
    errno.EROFS: ("not-permitted", "{} is read-only.", "Mount it writable, or use another path."),
    errno.ENOENT: ("no-file", "There is no {}.", "Check the path; if it is a program, install it."),
    errno.ENOTDIR: (
        "bad-path",
        "{} is not a folder, or is inside something that is not.",
        "Move the file that is in the way, or use another path.",
    ),
    errno.EISDIR: ("bad-path", "{} is a folder, not a file.", "Remove it, or use another path."),
    errno.EEXIST: ("bad-path", "{} already exists.", "Move it away, or use another path."),
    errno.ENOTEMPTY: ("bad-path", "{} is not empty.", "Empty it, or use another path."),
    errno.ENAMETOOLONG: ("bad-path", "The path {} is too long.", "Shorten it, or use another path."),
    errno.ELOOP: ("bad-path", "{} is a circular link.", "Fix the link, or use another path."),
    errno.ENOSPC: ("disk-full", "There is no space left for {}.", _FREE_SPACE),
    errno.EDQUOT: ("disk-full", "Your disk quota is used up: {}.", _FREE_SPACE),
}
_SHOWN = 200
"""How many characters of a path the headline shows; `where` has the whole path."""
_READERS = ("json", "tomllib", "ast", "yaml")
"""Modules that parse text recursively."""


def from_system(error: BaseException, where: str, cache: Path | None = None) -> FactoryError | None:
    """Turn an exception into an error with four parts, or return None if it is a bug.

    Args:
        error: the exception.
        where: what the user asked for, for failures that name no path.
        cache: the cache folder; failures in it get advice about FACTORY_CACHE.
    """
    if isinstance(error, OSError):
        return _from_os(error, where, cache)
    modules = _modules(error.__traceback__)
    innermost = modules[-1] if modules else ""
    name = "system-failed"
    why = f"{str(error)[:_SHOWN]}."
    match error:
        case UnicodeError():
            name, what, fix = "unreadable-text", "Input that should be text is not.", "Save it as UTF-8."
        case ValueError() if innermost in _READERS:
            name, what = "unreadable-text", "A file or response is damaged."
            fix = "Restore the file; if it is in the cache, delete it, and it will be created again."
        case RecursionError() if not set(modules).isdisjoint(_READERS):
            name, what = "unreadable-text", "A file or response is nested too deeply."
            why = "No sensible file has that many levels; it is damaged or malicious."
            fix = "Restore the file, or get it from another source."
        case ValueError() if "null byte" in str(error) or "null character" in str(error):
            name, what = "bad-path", "A path contains a NUL character."
            why, fix = "No system supports such paths.", "Remove the character from the path."
        case ValueError() if innermost == "urllib":
            what = "A URL is invalid."
            fix = "Check the URLs in variables and options; if they are fine, a server sent it: try later."
        case subprocess.SubprocessError():
            what, why = "Another program failed.", _ending(error)
            where = _program(error) or where
            fix = "Run it on its own to see what is wrong."
        case MemoryError():
            what = "Memory ran out."
            why = "The system has none left, or this process has reached its limit (`ulimit -v`)."
            fix = "Close other programs, or raise the limit."
        case _:
            return None
    if name == "unreadable-text":
        where = _path_being_read(error.__traceback__) or where
        return InputError(name, what, where=where, why=why, fix=fix)
    return MachineError(name, what, where=where, why=why, fix=fix)


def _from_os(error: OSError, where: str, cache: Path | None) -> FactoryError:
    named = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    place = named[-1] if named and error.errno == errno.EEXIST else named[0] if named else ""
    shown = place if len(place) <= _SHOWN else f"{place[:_SHOWN]}…"
    why = f"{error.strerror}." if error.strerror else f"{type(error).__name__}: {error}"
    name, what, fix = _KINDS.get(
        error.errno or 0,
        (
            "system-failed",
            "The system failed at {}.",
            "Try again; if it persists, check the system's log.",
        ),
    )
    if place and cache is not None and Path(place).is_relative_to(cache):
        fix = "It is in the cache: set FACTORY_CACHE to a folder that you can write to, or repair this one."
    if not place and name == "disk-full":
        where = f"standard output, or a file of {where}"
    return MachineError(
        name, what.format(shown or "the requested file"), where=place or where, why=why, fix=fix
    )


def _frames(traceback: TracebackType | None) -> list[TracebackType]:
    found: list[TracebackType] = []
    while traceback is not None:
        found.append(traceback)
        traceback = traceback.tb_next
    return found


def _modules(traceback: TracebackType | None) -> list[str]:
    """List the top-level packages that an exception passed through, innermost last."""
    return [step.tb_frame.f_globals.get("__name__", "").partition(".")[0] for step in _frames(traceback)]


def _path_being_read(traceback: TracebackType | None) -> str:
    """Return the file whose content was being read; decoders do not name it in their exceptions."""
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
            return f"It exited with code {error.returncode}."
        case subprocess.TimeoutExpired():
            return f"It did not finish within {error.timeout:.0f} s."
        case _:
            return f"{type(error).__name__}."
