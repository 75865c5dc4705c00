"""The store: downloads by sha256, layers by key, blobs by digest, each written whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from imagefactory.environment.paths import expand_home
from imagefactory.errors.layers import StoreBusyError
from imagefactory.store.atomic import translating_disk_full
from imagefactory.store.digests import Digest, Sha256
from imagefactory.store.hashed import HashedFiles


def default_root() -> Path:
    """Return `FACTORY_CACHE`, else the user's cache folder."""
    override = os.environ.get("FACTORY_CACHE")
    if override:
        return expand_home(override, "FACTORY_CACHE").absolute()
    # A user without a home (a container's, mostly) would get a folder named "~" in whatever folder this is.
    return expand_home(str(user_cache_path("imagefactory")), "HOME, which FACTORY_CACHE would replace")


class Store:
    """A folder of content that is only ever added to by a rename."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()

    def download(self, sha256: Sha256) -> Path:
        """Return where a downloaded file with this hash is, or would be."""
        return self.root / "downloads" / sha256[:2] / sha256

    def whole_download(self, sha256: Sha256) -> Path | None:
        """Return a downloaded file if it is here."""
        path = self.download(sha256)
        return path if path.exists() else None

    def layer(self, key: Sha256) -> Path:
        """Return where the result of building a layer (diff_id, digest, size) is recorded."""
        return self.root / "layers" / key[:2] / f"{key}.json"

    def owners(self, key: Sha256) -> Path:
        """Return the file that lists which package owns each path of a layer."""
        return self.layer(key).with_suffix(".owners")

    def slimmed(self, key: Sha256) -> Path:
        """Return the file that tells what was taken out of the wheels of a layer."""
        return self.layer(key).with_suffix(".slim")

    def blob(self, digest: Digest) -> Path:
        """Return where a blob is, or would be."""
        algorithm, _, value = digest.partition(":")
        return self.root / "blobs" / algorithm / value

    def facts(self, kind: str, sha256: Sha256) -> Path:
        """Return where facts read from a file (its zip directory, its architectures) are cached."""
        return self.root / "facts" / kind / sha256[:2] / f"{sha256}.json"

    def hashed_files(self) -> HashedFiles:
        """Return which files were hashed before, and need not be again."""
        return HashedFiles(self.root / "facts" / "hashed.json")

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Lend a folder for work in progress; it is removed afterwards."""
        parent = self.root / "scratch"
        with ExitStack() as held:
            with translating_disk_full(parent):
                parent.mkdir(parents=True, exist_ok=True)
                # Nobody may sweep the folder before it is marked as taken.
                with FileLock(parent / ".lock"):
                    folder = Path(tempfile.mkdtemp(dir=parent))
                    held.enter_context(FileLock(folder / ".taken"))
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what killed builds left behind; folders of running builds are locked, and stay."""
        parent = self.root / "scratch"
        if not parent.is_dir():
            return
        with FileLock(parent / ".lock"):
            for folder in (path for path in parent.iterdir() if path.is_dir()):
                # A build that ends at this moment removes its folder itself.
                with suppress(Timeout, FileNotFoundError), FileLock(folder / ".taken", blocking=False):
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
        self.root.mkdir(parents=True, exist_ok=True)
        with self._in_use.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # filelock shares locks through a database only
            try:
                yield
            finally:
                # Closing is not enough: a process that was forked meanwhile also has the file open.
                fcntl.flock(lock, fcntl.LOCK_UN)

    @contextmanager
    def for_cleaning(self) -> Iterator[None]:
        """Hold the store alone; refuse while a build uses it."""
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            alone = FileLock(self._in_use).acquire(blocking=False)
        except Timeout:
            raise StoreBusyError(
                "A build is running with this cache.",
                where=self.root,
                why="What is cleaned away could be what it is about to read.",
                fix="Wait for the build to end, then run `invoke clean` again.",
            ) from None
        with alone:
            yield

    @property
    def _in_use(self) -> Path:
        return self.root / ".in-use"
