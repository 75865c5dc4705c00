"""The store: downloads by sha256, layers by key, blobs by digest, each written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from platformdirs import user_cache_path

from imagefactory.environment.file_lock import exclusive, shared
from imagefactory.environment.paths import expand_home
from imagefactory.errors.commands import OptionError
from imagefactory.errors.layers import StoreBusyError
from imagefactory.store.atomic import translating_disk_full
from imagefactory.store.digests import Digest, Sha256
from imagefactory.store.hashed import HashedFiles, refuse_changed
from imagefactory.store.ownership import refuse_writable_by_others


def default_root() -> Path:
    """Return `FACTORY_CACHE`, else the user's cache folder."""
    override = os.environ.get("FACTORY_CACHE")
    if override:
        return expand_home(override, "FACTORY_CACHE").absolute()
    return _user_root()


def _user_root() -> Path:
    # A user without a home (a container's, mostly) would get a folder named "~" in whatever folder this is.
    return expand_home(str(user_cache_path("imagefactory")), "HOME, which FACTORY_CACHE would replace")


def _own_root(root: Path) -> Path:
    """Return the user's own folder beside a cache that is shared with others, and otherwise the cache itself."""
    shared = os.environ.get("FACTORY_SHARED_CACHE", "")
    if shared not in ("", "checked"):
        raise OptionError(
            f"A cache cannot be shared as {shared!r}.",
            where="FACTORY_SHARED_CACHE",
            why="It is `checked` (everything that is read from FACTORY_CACHE is hashed) or not set.",
            fix="Set it to `checked`, or unset it.",
        )
    return _user_root() if shared else root


class Store:
    """A folder of content that is only ever added to by a rename.

    A cache that is shared with others has only what can be checked by its name: downloads and blobs. Everything else is
    in a folder of the user's own.
    """

    def __init__(self, root: Path | None = None, *, own: Path | None = None) -> None:
        """Open a cache; `own` is the user's own folder if others can write to the cache."""
        self.root = root or default_root()
        self._own = own or (self.root if root else _own_root(self.root))

    @property
    def is_shared(self) -> bool:
        """Whether others can write to the cache: then what is read from it is hashed every time."""
        return self._own != self.root

    @cached_property
    def own(self) -> Path:
        """The folder that nobody else can write to; a new one is closed to others, whatever the umask."""
        with suppress(OSError):  # it exists; or whoever writes to it will report why it cannot
            self._own.mkdir(mode=0o700, parents=True)
        refuse_writable_by_others(self._own)
        return self._own

    @cached_property
    def _content(self) -> Path:
        """The folder of files that are named by their hash."""
        return self.root if self.is_shared else self.own

    def download(self, sha256: Sha256) -> Path:
        """Return where a downloaded file with this hash is, or would be."""
        return self._content / "downloads" / sha256[:2] / sha256

    def whole_download(self, sha256: Sha256) -> Path | None:
        """Return a downloaded file if it is here; raise DamagedCacheError if others changed it."""
        path = self.download(sha256)
        if not path.exists():
            return None
        if self.is_shared:
            refuse_changed({sha256: path})
        return path

    def layer(self, key: Sha256) -> Path:
        """Return where the result of building a layer (diff_id, digest, size) is recorded."""
        return self.own / "layers" / key[:2] / f"{key}.json"

    def owners(self, key: Sha256) -> Path:
        """Return the file that lists which package owns each path of a layer."""
        return self.layer(key).with_suffix(".owners")

    def slimmed(self, key: Sha256) -> Path:
        """Return the file that tells what was taken out of the wheels of a layer."""
        return self.layer(key).with_suffix(".slim")

    def blob(self, digest: Digest) -> Path:
        """Return where a blob is, or would be."""
        algorithm, _, value = digest.partition(":")
        return self._content / "blobs" / algorithm / value

    def facts(self, kind: str, sha256: Sha256) -> Path:
        """Return where facts read from a file (its zip directory, its architectures) are cached."""
        return self.own / "facts" / kind / sha256[:2] / f"{sha256}.json"

    def hashed_files(self) -> HashedFiles:
        """Return which files were hashed before, and need not be again."""
        return HashedFiles(None if self.is_shared else self.own / "facts" / "hashed.json")

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Lend a folder for work in progress; it is removed afterwards."""
        parent = self.own / "scratch"
        with ExitStack() as held:
            # Nobody may sweep the folder before it is marked as taken.
            with translating_disk_full(parent), exclusive(parent / ".lock"):
                folder = Path(tempfile.mkdtemp(dir=parent))
                held.enter_context(exclusive(folder / ".taken"))
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what killed builds left behind; folders of running builds are locked, and stay."""
        parent = self.own / "scratch"
        if not parent.is_dir():
            return
        with exclusive(parent / ".lock"):
            for folder in (path for path in parent.iterdir() if path.is_dir()):
                # A build that ends at this moment removes its folder itself.
                gone = (FileExistsError, FileNotFoundError)
                with suppress(_TakenError, *gone), exclusive(folder / ".taken", busy=_leave):
                    shutil.rmtree(folder, ignore_errors=True)

    def mark_used(self, *paths: Path) -> None:
        """Mark files as used just now: `clean` removes the least recently used first."""
        hashed = self.hashed_files()
        known = [path for path in paths if hashed.knows(path)]
        for path in paths:
            with suppress(OSError):  # somebody else's file, or a disk that is read only
                os.utime(path)
        hashed.remember(known)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep `clean` away while a build works with the store; builds do not keep each other away."""
        with shared(self._content / ".in-use"):
            yield

    @contextmanager
    def for_cleaning(self) -> Iterator[None]:
        """Hold the store alone; refuse while a build uses it."""
        with exclusive(self.root / ".in-use", busy=self._refuse_cleaning):
            yield

    def _refuse_cleaning(self) -> NoReturn:
        raise StoreBusyError(
            "A build is running with this cache.",
            where=self.root,
            why="What is cleaned away could be what it is about to read.",
            fix="Wait for the build to end, then run `invoke clean` again.",
        )


class _TakenError(Exception):
    """A scratch folder belongs to a build that is running."""


def _leave() -> NoReturn:
    raise _TakenError
