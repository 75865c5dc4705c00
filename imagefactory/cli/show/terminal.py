"""The consoles for standard output and standard error, and the layout of errors."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from imagefactory.errors import FactoryError

# Without a terminal (a pipe, a CI log) a table is as wide as it needs to be.
_WIDTH = None if sys.stdout.isatty() else 200
# Names and reasons come from files: square brackets and colons in them are not markup.
out = Console(highlight=False, markup=False, emoji=False, width=_WIDTH)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)


def error_message(error: FactoryError) -> Text:
    """Lay out the four parts of an error."""
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
