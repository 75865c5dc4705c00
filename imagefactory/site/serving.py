"""Shows the site on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from imagefactory.errors.commands import OptionError


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
        """Log nothing."""


@contextmanager
def site_server(folder: Path, port: int = 0) -> Iterator[ThreadingHTTPServer]:
    """Listen on the loopback, on a free port if none is given; the block runs the server."""
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=folder))
    except (OSError, OverflowError) as error:
        raise OptionError(
            f"The port {port} cannot be used.",
            where="the --port option",
            why=f"{error}.",
            fix="Name another port, or none for a free one.",
        ) from None
    with server:
        yield server
