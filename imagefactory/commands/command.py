"""What all commands share: they get the project to act on, and their failures end as messages."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import task

from imagefactory.commands.failures import in_words
from imagefactory.environment.certificates import trust_the_machine
from imagefactory.environment.sets import RUN
from imagefactory.environment.setup import ensure

if TYPE_CHECKING:
    from rich.text import Text

TARGETS = "what to act on: MODEL[@VLLM][/ARCH[/MACHINE]], a glob, or all; repeatable"
TARGET = f"{TARGETS} (default: the first model)"
ONE_TARGET = "which image: MODEL[@VLLM][/ARCH[/MACHINE]] (default: the first model)"


def command(*, needs: str = RUN, **options: Any) -> Callable[[Callable[..., None]], Any]:
    """Turn a function into a task; its first argument is the project, and it fails with a message and an exit code.

    `needs` names the locked set of packages (locks/environment/) that the task runs with. The checkout
    comes from the collection's configuration, where tasks.py puts it.
    """

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def run(context: Context, *args: Any, **kwargs: Any) -> None:
            root = Path(context.checkout)
            with in_words(f"the command {function.__name__.strip('_').replace('_', '-')}", root):
                trust_the_machine()
                need(root, needs)
                from imagefactory.locks.project import Project

                function(Project(root), *args, **kwargs)

        return task(**options)(run)

    return decorate


def need(root: Path, packages: str) -> None:
    """Install a locked set of packages if it is missing, and then start this command again."""
    if ensure(root, packages, lambda text: say(f"inv: {text}")):
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program again


def say(text: str | Text) -> None:
    """Print a message to standard error; long paths and commands are not wrapped, so that they can be copied."""
    from imagefactory.commands.show.terminal import err

    err.print(text, soft_wrap=True)


def print_json(value: object) -> None:
    """Print JSON in ASCII, so that the bytes do not depend on the terminal's encoding."""
    print(json.dumps(value, indent=2))
