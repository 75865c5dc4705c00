"""Writes the site to a folder, whole or not at all, and shows it on the loopback."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from imagefactory.errors import UsageError
from imagefactory.oci.layout import writing_output
from imagefactory.store.atomic import WRITING

MARK: Final = "index.json"
"""A folder with this file and a feed is a site, and may be replaced."""


def write_site(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files beside a folder, and put them in its place; it has to be new, empty or an earlier site."""
    refuse_foreign(folder)
    with writing_output(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=WRITING))
        try:
            for path, data in files.items():
                target = fresh / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            fresh.chmod(0o755)
            _replace(folder, fresh)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _replace(folder: Path, fresh: Path) -> None:
    if not folder.exists():
        fresh.rename(folder)
        return
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=WRITING) as aside:
        folder.rename(Path(aside, "old"))
        fresh.rename(folder)


def refuse_foreign(folder: Path) -> None:
    """Raise OutputError if a folder holds anything but an earlier site."""
    with writing_output(folder):
        present = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if present and not {MARK, "feed.xml", "index.html"} <= present:
        raise UsageError(
            "output-unusable",
            "The folder is not a site of the factory.",
            where=folder,
            why=f"It holds {min(present)}, which a new site would replace.",
            fix="Name a new or empty folder, or one that `./inv site` wrote.",
        )


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
        """Log nothing."""


@contextmanager
def site_server(folder: Path, port: int = 0) -> Iterator[ThreadingHTTPServer]:
    """Listen on the loopback, on a free port if none is given; the block runs the server."""
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=folder))
    except (OSError, OverflowError) as error:
        raise UsageError(
            "bad-option",
            f"The port {port} cannot be used.",
            where="the --port option",
            why=f"{error}.",
            fix="Name another port, or none for a free one.",
        ) from None
    with server:
        yield server
