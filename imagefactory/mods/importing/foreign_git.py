"""Reads somebody else's Git repository without its configuration, in which any option may name a program to run.

Git works in an empty repository of our own that borrows the other one's objects and branches, and nothing else.
"""

import os
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_SECONDS: Final = 30
_MOST_BYTES: Final = 16 * 1024**2
_BORROWED: Final = ("objects", "refs", "packed-refs", "shallow")
_CONFIG: Final = """\
[core]
    repositoryformatversion = 1
    bare = true
    bigFileThreshold = 16m
[extensions]
    objectFormat = {format}
"""
_ENVIRONMENT: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
}
_DIFF: Final = (
    *("--no-ext-diff", "--no-textconv", "--no-renames", "--full-index", "--submodule=short"),
    "--no-color",
)


@dataclass(frozen=True)
class ForeignRepository:
    """A repository on this machine that anybody may have configured."""

    top: Path  # the folder that it is the history of
    own: Path  # where its HEAD is
    shared: Path  # where its objects, branches and configuration are: for a second work tree, another folder

    @classmethod
    def around(cls, folder: Path) -> Self | None:
        place = folder.resolve()
        for top in (place, *place.parents):
            own = top / ".git"
            if own.is_file():
                own = top / _text(own).removeprefix("gitdir:").strip()
            for found in (own, top):
                shared = found / _text(found / "commondir").strip()
                folders = (shared / "objects", shared / "refs")
                if (found / "HEAD").is_file() and all(folder.is_dir() for folder in folders):
                    return cls(top, found, shared)
        return None

    def head(self) -> str:
        """Return the commit that is checked out; empty if there is none."""
        return (self._ask("rev-parse", "--verify", "HEAD") or b"").decode("utf-8", "replace").strip()

    def origin(self) -> str:
        """Return the address that it was cloned from, if it says so."""
        return self._option("remote.origin.url")

    def diff(self, commits: str) -> bytes | None:
        """Return the difference of two commits; None if Git cannot tell, or it is too large."""
        return self._ask("diff", *_DIFF, "--end-of-options", commits, "--")

    def _option(self, name: str) -> str:
        """Read one option of its configuration, in which nothing else has an effect."""
        file = self.shared / "config"
        words = ("config", "--file", str(file.resolve()), "--no-includes", "--get", name)
        said = _run(Path(os.sep), *words) if file.is_file() else None
        return (said or b"").decode("utf-8", "replace").strip()

    def _ask(self, *words: str) -> bytes | None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            kind = "sha256" if self._option("extensions.objectFormat") == "sha256" else "sha1"
            (place / "config").write_text(_CONFIG.format(format=kind), "utf-8")
            (place / "HEAD").write_text(_text(self.own / "HEAD"), "utf-8")
            for name in _BORROWED:
                if (self.shared / name).is_dir() or (self.shared / name).is_file():
                    (place / name).symlink_to((self.shared / name).resolve())
            return _run(place, "--git-dir", folder, *words)


def _text(file: Path) -> str:
    """Read the first line of one of Git's small files; empty if it is no file."""
    try:
        with (file if file.is_file() else Path(os.devnull)).open("rb") as stream:
            return stream.readline(4096).decode("utf-8", "replace")
    except OSError:
        return ""


def _run(folder: Path, *words: str) -> bytes | None:
    """Run Git for a while; None if it fails, or says more than a mod can be."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        with subprocess.Popen(  # noqa: S603 - our own words
            ["git", *words],  # noqa: S607 - the user's own Git
            cwd=folder,
            env=kept | _ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            end = threading.Timer(_SECONDS, process.kill)
            end.start()
            try:
                said = process.stdout.read(_MOST_BYTES + 1) if process.stdout else b""
                if len(said) > _MOST_BYTES:
                    process.kill()
                return said if process.wait() == 0 else None
            finally:
                end.cancel()
    except OSError:
        return None
