"""Turns failures of commands into a message and an exit code, never a traceback."""

from __future__ import annotations

import os
import select
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from invoke.exceptions import Exit, UnexpectedExit

from imagefactory.errors import FactoryError

INTERRUPTED = 130  # as in shells: 128 plus the number of the signal


@contextmanager
def in_words(where: str, root: Path | None) -> Iterator[None]:
    """Turn any failure of the command `where` into a message and an exit code; `root` is the checkout, once known."""
    try:
        try:
            yield
        finally:
            # Flush now, not at exit, so that a full disk or a closed pipe is noticed here.
            sys.stdout.flush()
    except (Exit, UnexpectedExit):
        raise  # already reported
    except KeyboardInterrupt:
        with suppress(OSError, ValueError):
            print("interrupted; what is finished is kept", file=sys.stderr, flush=True)
        # Not sys.exit, which would wait for downloads that hang.
        os._exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the one place where all failures end
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            # The reader (head, less) closed the pipe, which is fine.
            _discard_output()
            raise Exit from None
        told = error if isinstance(error, FactoryError) else _translated(error, where, root)
        complain(told)
        if root and told.about_the_machine:
            _examine_machine_once(root)
        raise Exit(code=told.exit_code) from None


def complain(error: FactoryError) -> None:
    """Print an error to standard error; if that fails too, the exit code has to do."""
    try:
        from imagefactory.commands.show import terminal

        terminal.err.print(terminal.error_message(error), soft_wrap=True)
    except Exception:  # noqa: BLE001 - fall back to plain text
        try:
            print(f"error: {error}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            _discard(2)


def exit_refused(errors: Sequence[FactoryError]) -> None:
    """Print all errors, and exit with the code of the first; return if there is none."""
    for error in errors:
        complain(error)
    if errors:
        raise Exit(code=errors[0].exit_code)


def _examine_machine_once(root: Path) -> None:
    """Run the doctor on the first failure that this machine may have caused."""
    from imagefactory.environment.setup import STAMPS

    mark = Path(sys.prefix) / STAMPS / "examined"
    if not mark.parent.is_dir() or mark.exists():
        return
    with suppress(Exception):  # the error is printed; nothing here may hide it
        mark.touch()
        from imagefactory.commands.show import terminal
        from imagefactory.environment.clock import today
        from imagefactory.locks.project import Project
        from imagefactory.resolve.doctor import BUILD, examine

        terminal.err.print("\nThis is the first failure here, so `invoke doctor` examines the machine:")
        found = examine(Project(root), today())
        wrong = [
            one
            for one in found
            if one.health == "failed" or (one.health, one.needed_by) == ("warning", BUILD)
        ]
        for finding in wrong:
            line = f"  {finding.health}: {finding.subject}: {finding.detail} {finding.remedy}"
            terminal.err.print(line, soft_wrap=True)
        if not wrong:
            terminal.err.print("  nothing else is wrong")


def prepare_streams() -> None:
    """Redirect closed standard streams to /dev/null, and make every character printable."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            # Otherwise the next file to be opened would get this descriptor, and our output.
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # File names need not be Unicode, and terminals cannot show every character.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _translated(error: Exception, where: str, root: Path | None) -> FactoryError:
    """Explain an unexpected exception: the system refused something, or it is a bug of ours."""
    from imagefactory.errors.system import SystemFailureError, from_system

    if isinstance(error, OSError) and _output_is_broken():
        _discard_output()
        where = "standard output"
        return from_system(error, where) or SystemFailureError(
            "The output cannot be written.", where=where, why=str(error), fix="Send it somewhere else."
        )
    return from_system(error, where, _cache()) or _internal(error, where, root)


def _internal(error: Exception, where: str, root: Path | None) -> FactoryError:
    from imagefactory.commands.crash_report import hide, write_report
    from imagefactory.errors.commands import InternalError

    why = hide(f"{type(error).__name__}: {error}")
    cache = _cache()
    folders = [cache / "reports"] if cache else []
    with suppress(OSError):
        folders.append(Path(tempfile.gettempdir()))
    path = write_report(error, folders, {"where": where, "commit": _commit(root)})
    saved = f", with {path} (look through it first)" if path else "; the report could not be written anywhere"
    return InternalError(
        "This is a bug in the factory.",
        where=where,
        why=why[:500],
        fix=f"Please report it at {_issues(root)}{saved}.",
    )


def _issues(root: Path | None) -> str:
    with suppress(Exception):
        from imagefactory.matrix.matrix import load_matrix

        if root:
            return f"{load_matrix(root / 'matrix.yaml').source.rstrip('/')}/issues"
    return "the repository you cloned"


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

    with suppress(FactoryError):
        return default_root()
    return None


def _reader_is_gone() -> bool:
    """Whether it is our own output that has no reader left, not some other pipe."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _output_is_broken() -> bool:
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return True
    return False


def _discard_output() -> None:
    """Send standard output to /dev/null, so that Python does not fail again at exit."""
    _discard(1)
    if _reader_is_gone():
        _discard(2)


def _discard(number: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)
