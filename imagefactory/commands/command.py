"""What every command has in common: its failures are messages with their own exit code."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import task

from imagefactory.commands.checkout import checkout_root
from imagefactory.commands.failures import in_words
from imagefactory.environment.certificates import trust_the_machine
from imagefactory.environment.sets import RUN
from imagefactory.environment.setup import ensure

if TYPE_CHECKING:
    from rich.text import Text

TARGET = "what to act on: MODEL[@VLLM][/ARCH[/MACHINE]], a glob, or all; may be given several times"


def command(*, needs: str = RUN, **options: Any) -> Callable[[Callable[..., None]], Any]:
    """Make a task whose failures are shown as messages with their own exit code, not as tracebacks.

    `needs` names the locked set of packages (locks/environment/) that the task runs with.
    """

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def run(context: Context, *args: Any, **kwargs: Any) -> None:
            with in_words(f"the command {function.__name__.strip('_').replace('_', '-')}"):
                trust_the_machine()
                need(needs)
                function(context, *args, **kwargs)

        return task(**options)(run)

    return decorate


def need(packages: str) -> None:
    """Install a locked set of packages where it is missing, then start this command again with it."""
    if ensure(checkout_root(), packages, lambda text: say(f"inv: {text}")):
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program again


def say(text: str | Text) -> None:
    """Tell the user something, on standard error; long paths and commands stay whole, so that they can be copied."""
    from imagefactory.commands.show.terminal import err

    err.print(text, soft_wrap=True)


def print_json(value: object) -> None:
    """Print JSON in ASCII, so that the bytes do not depend on the terminal's encoding."""
    print(json.dumps(value, indent=2))
