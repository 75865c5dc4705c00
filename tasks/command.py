"""What every command has in common: its failures are messages with their own exit code."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from imagefactory.environment.certificates import trust_the_machine
from imagefactory.environment.sets import RUN
from imagefactory.environment.setup import ensure
from imagefactory.errors import FactoryError

if TYPE_CHECKING:
    from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
INTERRUPTED = 130  # as shells have it: 128 and the number of the signal
TARGET = "what to act on: MODEL[@VLLM][/ARCH[/MACHINE]], a glob, or all; may be given several times"


def command(*, needs: str = RUN, **options: Any) -> Callable[[Callable[..., None]], Any]:
    """Make a task whose failures are shown as messages with their own exit code, not as tracebacks.

    `needs` names the locked set of packages (locks/environment/) that the task runs with.
    """

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def run(context: Context, *args: Any, **kwargs: Any) -> None:
            try:
                trust_the_machine()
                need(needs)
                function(context, *args, **kwargs)
                sys.stdout.flush()
            except FactoryError as error:
                from imagefactory.console import error_message

                say(error_message(error))
                raise Exit(code=error.exit_code) from None
            except BrokenPipeError:
                # The reader (head, less) went away; that is its right.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            except KeyboardInterrupt:
                print("interrupted; what is finished is kept", file=sys.stderr, flush=True)
                # Not sys.exit: it would wait for downloads from a server that has fallen silent.
                os._exit(INTERRUPTED)

        return task(**options)(run)

    return decorate


def need(packages: str) -> None:
    """Install a locked set of packages where it is missing, then start this command again with it."""
    if ensure(ROOT, packages, lambda text: say(f"inv: {text}")):
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program again


def say(text: str | Text) -> None:
    """Tell the user something, on standard error; long paths and commands stay whole, so that they can be copied."""
    from imagefactory.console import err

    err.print(text, soft_wrap=True)


def print_json(value: object) -> None:
    """Print JSON in ASCII, so that the bytes do not depend on the terminal's encoding."""
    print(json.dumps(value, indent=2))
