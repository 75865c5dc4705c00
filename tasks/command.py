"""What every command has in common: its failures are messages with their own exit code."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import task

from tasks.failures import in_words

if TYPE_CHECKING:
    from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
TARGET = "what to act on: MODEL[@VLLM][/ARCH[/MACHINE]], a glob, or all; may be given several times"


def command(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """Make a task whose failures are shown as messages with their own exit code, not as tracebacks."""

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def run(context: Context, *args: Any, **kwargs: Any) -> None:
            with in_words(f"the command {function.__name__.strip('_').replace('_', '-')}"):
                function(context, *args, **kwargs)

        return task(**options)(run)

    return decorate


def say(text: str | Text) -> None:
    """Tell the user something, on standard error; long paths and commands stay whole, so that they can be copied."""
    from imagefactory.console import err

    err.print(text, soft_wrap=True)


def print_json(value: object) -> None:
    """Print JSON in ASCII, so that the bytes do not depend on the terminal's encoding."""
    print(json.dumps(value, indent=2))
