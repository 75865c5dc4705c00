"""Turns failures of commands into a message and an exit code, never a traceback.

Exceptions of the operating system and of parsers get a remedy; code that knows more raises its own error first.
"""

import errno
import json
import os
import platform
import select
import shlex
import subprocess
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from invoke.exceptions import Exit

from imagefactory.cli.secrets import hide
from imagefactory.errors import FactoryError, InputError, InternalError, MachineError

INTERRUPTED = 130  # as in shells: 128 plus the number of the signal


@contextmanager
def in_words(where: str, root: Path) -> Iterator[None]:
    """Turn any failure of the command `where` into a message and an exit code; `root` is the checkout."""
    try:
        try:
            yield
        finally:
            # Flush now, not at exit, so that a full disk or a closed pipe is noticed here.
            sys.stdout.flush()
    except Exit:
        raise  # already reported
    except KeyboardInterrupt:
        with suppress(OSError, ValueError):
            print("interrupted; finished work is kept", file=sys.stderr, flush=True)
        # Not sys.exit, which would wait for downloads that hang.
        os._exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the one place where all failures end
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            _discard(1)  # the reader (head, less) closed the pipe, which is fine
            raise Exit from None
        explained = error if isinstance(error, FactoryError) else _translated(error, where, root)
        complain(explained)
        raise Exit(code=explained.exit_code) from None


def complain(error: FactoryError) -> None:
    """Print an error to standard error; if that fails too, the exit code has to do."""
    from imagefactory.cli.show import terminal

    what, where, why, fix = map(hide, (error.what, error.where, error.why, error.fix))
    shown = FactoryError(error.name, what, where=where, why=why, fix=fix)
    try:
        terminal.err.print(terminal.error_message(shown), soft_wrap=True)
    except (OSError, ValueError):
        _discard(2)


def exit_refused(errors: Sequence[FactoryError]) -> None:
    """Print all errors, and exit with the code of the first; return if there is none."""
    for error in errors:
        complain(error)
    if errors:
        raise Exit(code=errors[0].exit_code)


def prepare_streams() -> None:
    """Redirect closed standard streams to /dev/null, and make every character printable."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            # Otherwise the next file to be opened would get this descriptor, and our output.
            _discard(number)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # File names need not be Unicode, and terminals cannot show every character.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _translated(error: Exception, where: str, root: Path) -> FactoryError:
    """Explain an unexpected exception: the system refused something, or it is a bug of ours."""
    from imagefactory.store.cache import default_root

    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _discard(1)  # else Python would fail again at exit
        where = "standard output"
    cache = None
    with suppress(FactoryError):
        cache = default_root()
    if explained := from_system(error, where, cache):
        return explained
    path = _write_report(error, cache, where, root)
    saved = f"with {path} (look through it first)" if path else "the report could not be written anywhere"
    return InternalError(
        "internal",
        "This is a bug in the factory.",
        where=where,
        why=hide(f"{type(error).__name__}: {error}")[:500],
        fix=f"Please report it where you cloned the factory from (Issues), {saved}.",
    )


def _reader_is_gone() -> bool:
    """Whether it is our own output that has no reader left, not some other pipe."""
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    poll.register(2, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _discard(number: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != number:
        os.dup2(null, number)
        os.close(null)


_HARMLESS = (
    *("FACTORY_CACHE", "FACTORY_CCACHE_REMOTE", "FACTORY_DEBIAN_MIRROR", "FACTORY_DEBIAN_OLD", "FACTORY_GITHUB_API"),
    *("FACTORY_DEBIAN_SECURITY_MIRROR", "FACTORY_GIT_HOST", "FACTORY_READINGS", "FACTORY_REGISTRY", "FACTORY_SHARE"),
    *("FACTORY_SITE", "FACTORY_SMOKE_START_LIMIT"),
)
"""Settings whose values a report may name; people attach reports to public issues."""


def _write_report(error: Exception, cache: Path | None, where: str, root: Path) -> Path | None:
    """Write a report to the cache, or to the folder for temporary files; return its path."""
    git = ["git", "-C", str(root), "rev-parse", "HEAD"]
    commit = ""
    with suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.run(git, capture_output=True, text=True, check=True, timeout=5).stdout.strip()  # noqa: S603
    lines = [
        f"command:  {shlex.join(['inv', *sys.argv[1:]])}",
        f"where:    {where}",
        f"commit:   {commit or 'unknown'}",
        f"python:   {sys.version.split()[0]} ({sys.executable})",
        f"platform: {platform.platform()}",
        *(f"setting:  {name}={os.environ[name]}" for name in _HARMLESS if name in os.environ),
        "",
        "".join(traceback.format_exception(error)),
    ]
    for folder in [*([cache / "reports"] if cache else []), Path(tempfile.gettempdir())]:
        with suppress(OSError, ValueError):
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=folder, prefix="imagefactory-error-", suffix=".txt")
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(hide("\n".join(lines)))
            return Path(name)
    return None


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
_SHOWN = 200  # characters of somebody else's text that an error repeats


def from_system(error: BaseException, where: str, cache: Path | None = None) -> FactoryError | None:
    """Turn an exception into an error with four parts, or return None if it is a bug.

    `where` is what the user asked for, for failures that name no path; those in the cache get advice about it.
    """
    match error:
        case OSError():
            return _from_os(error, where, cache)
        case UnicodeError() | json.JSONDecodeError() | tomllib.TOMLDecodeError():
            return InputError(
                "unreadable-text",
                "A file or response is damaged.",
                where=where,
                why=f"{str(error)[:_SHOWN]}.",
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
    # Of two names, as of a rename, the second is the one that exists already.
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
