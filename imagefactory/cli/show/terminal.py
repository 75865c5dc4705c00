"""The consoles for standard output and standard error, and the layout of errors."""

import re
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from imagefactory.errors import FactoryError

# Without a terminal (a pipe, a CI log) a table is as wide as it needs to be.
_WIDTH = None if sys.stdout.isatty() else 200
_UNSAFE = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that move the cursor, recolour or reorder what a terminal shows."""


class _SafeConsole(Console):
    """Prints texts from registries, servers and files as they are: no character of theirs commands the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = _UNSAFE.sub(lambda character: ascii(character[0])[1:-1], segment.text)
            yield segment if segment.control else segment._replace(text=text)


# Names and reasons come from files: square brackets and colons in them are not markup.
out = _SafeConsole(highlight=False, markup=False, emoji=False, width=_WIDTH)
err = _SafeConsole(stderr=True, highlight=False, markup=False, emoji=False)


def error_message(error: FactoryError) -> Text:
    return Text.assemble(
        (f"error[{error.name}]: ", "bold red"),
        (error.what, "bold"),
        ("\n  where: ", "dim"),
        error.where,
        ("\n  why:   ", "dim"),
        error.why,
        ("\n  next:  ", "dim"),
        error.fix,
    )
