"""How commands end when something goes wrong: with a message and an exit code, never with a traceback."""

from __future__ import annotations

import os
import select
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from invoke.exceptions import Exit, UnexpectedExit

from imagefactory.errors import FactoryError

INTERRUPTED = 130  # as shells have it: 128 and the number of the signal


@contextmanager
def in_words(where: str, root: Path | None) -> Iterator[None]:
    """Turn any failure of the command `where` into a message and an exit code; `root` is the checkout, once known."""
    try:
        try:
            yield
        finally:
            # Now, not when Python ends: a full disk, or a reader that went away, is noticed here.
            sys.stdout.flush()
    except (Exit, UnexpectedExit):
        raise  # all is said
    except KeyboardInterrupt:
        with suppress(OSError, ValueError):
            print("interrupted; what is finished is kept", file=sys.stderr, flush=True)
        # Not sys.exit: it would wait for downloads from a server that has fallen silent.
        os._exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - this is the one place where all of them end
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            # The reader (head, less) went away; that is its right.
            _discard_output()
            raise Exit from None
        told = error if isinstance(error, FactoryError) else _translated(error, where, root)
        complain(told)
        if root and told.about_the_machine:
            _examine_machine_once(root)
        raise Exit(code=told.exit_code) from None


def complain(error: FactoryError) -> None:
    """Show an error on standard error; if that is not possible, the exit code has to do."""
    try:
        from imagefactory.commands.show import terminal

        terminal.err.print(terminal.error_message(error), soft_wrap=True)
    except Exception:  # noqa: BLE001 - whatever keeps it from being shown well, it is shown
        try:
            print(f"error: {error}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            _discard(2)


def _examine_machine_once(root: Path) -> None:
    """Show what the doctor finds wrong, at the first failure that the machine may have caused."""
    from imagefactory.environment.setup import STAMPS

    mark = Path(sys.prefix) / STAMPS / "examined"
    if not mark.parent.is_dir() or mark.exists():
        return
    with suppress(Exception):  # what was to be said is said; nothing here may hide it
        mark.touch()
        from imagefactory.commands.show import terminal
        from imagefactory.locks.project import Project
        from imagefactory.resolve.doctor import BUILD, examine

        terminal.err.print("\nThis is the first failure here, so `invoke doctor` examines the machine:")
        wrong = [finding for finding in examine(Project(root)) if finding.health != "ok"]
        for finding in wrong:
            if finding.health == "failed" or finding.needed_by == BUILD:
                line = f"  {finding.health}: {finding.subject}: {finding.detail} {finding.remedy}"
                terminal.err.print(line, soft_wrap=True)
        if not wrong:
            terminal.err.print("  nothing else is wrong")


def prepare_streams() -> None:
    """Make standard streams that can be relied on: closed ones lead nowhere, no character is refused."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            # Otherwise the next file that is opened would get this number, and receive what is printed.
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # Names of files need not be Unicode, and terminals need not know every character.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _translated(error: Exception, where: str, root: Path | None) -> FactoryError:
    """Find words for an exception that nobody foresaw; what the system did not do is our own mistake."""
    from imagefactory.errors.system import SystemFailureError, from_system

    output = _broken_output()
    if isinstance(error, OSError) and output:
        _discard_output()
        found = from_system(error, output)
        return found or SystemFailureError(
            "Nothing can be printed.", where=output, why=str(error), fix="Print to somewhere else."
        )
    return from_system(error, where, _cache()) or _internal(error, where, root)


def _internal(error: Exception, where: str, root: Path | None) -> FactoryError:
    from imagefactory.commands.crash_report import hide, write_report
    from imagefactory.errors.internal import InternalError

    why = hide(f"{type(error).__name__}: {error}", sys.argv, os.environ)
    cache = _cache()
    folders = [] if cache is None else [cache / "reports"]
    with suppress(OSError):
        folders.append(Path(tempfile.gettempdir()))
    command = ["inv", *sys.argv[1:]]
    path = write_report(error, command, folders, {"where": where, "commit": _commit(root)})
    saved = f", with {path} (look through it first)" if path else "; its report could not be written anywhere"
    return InternalError(
        "This is a mistake in the factory itself.",
        where=where,
        why=why[:500],
        fix=f"Please report it at {_issues(root)}{saved}.",
    )


def _issues(root: Path | None) -> str:
    with suppress(Exception):
        from imagefactory.matrix.matrix import load_matrix

        if root:
            return f"{load_matrix(root / 'matrix.yaml').source.rstrip('/')}/issues"
    return "the place that this repository was cloned from"


def _commit(root: Path | None) -> str:
    if root:
        with suppress(OSError):
            git = root / ".git"
            head = (git / "HEAD").read_text("utf-8").strip()
            name = head.removeprefix("ref: ")
            return head if name == head else f"{(git / name).read_text('utf-8').strip()} ({name})"
    return "unknown"


def _cache() -> Path | None:
    from imagefactory.store.cache import default_root

    try:
        return default_root()
    except FactoryError:
        return None


def _reader_is_gone() -> bool:
    """Tell a reader of our output that went away from another pipe that broke."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _broken_output() -> str:
    """Find out whether it is standard output that cannot be written to."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return "standard output"
    return ""


def _discard_output() -> None:
    """Let standard output lead nowhere, so that Python does not fail again when it ends."""
    _discard(1)
    if _reader_is_gone():
        _discard(2)


def _discard(number: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)
