"""The store: downloads by sha256, layers by key, blobs by digest, each written whole or not at all; its cleaning."""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from imagefactory.errors import MachineError
from imagefactory.store.atomic import WRITING, translating_disk_full
from imagefactory.store.digests import Digest, HashedFiles, Sha256
from imagefactory.store.paths import expand_home


def default_root() -> Path:
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
        return self.root / "downloads" / sha256[:2] / sha256  # 256 folders keep each of them short

    def whole_download(self, sha256: Sha256) -> Path | None:
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
        algorithm, _, value = digest.partition(":")
        return self.root / "blobs" / algorithm / value

    def facts(self, kind: str, sha256: Sha256) -> Path:
        """Return where facts read from a file (its zip directory, its architectures) are cached."""
        return self.root / "facts" / kind / sha256[:2] / f"{sha256}.json"

    def hashed_files(self) -> HashedFiles:
        return HashedFiles(self.root / "facts" / "hashed.json")

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Lend a folder for work in progress; it is removed afterwards."""
        parent = self.root / "scratch"
        with ExitStack() as stack:
            with translating_disk_full(parent):
                parent.mkdir(parents=True, exist_ok=True)
                # Nobody may sweep the folder before it is marked as taken.
                with FileLock(parent / ".lock"):
                    folder = Path(tempfile.mkdtemp(dir=parent))
                    stack.enter_context(FileLock(folder / ".taken"))
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
        """Mark files as used just now, so that `clean` keeps them."""
        hashed = self.hashed_files()
        # Touching a file changes the times by which a hashed file is recognised.
        unchanged = [path for path in paths if hashed.knows(path)]
        for path in paths:
            with suppress(OSError):  # somebody else's file, or a disk that is read only
                os.utime(path)
        hashed.remember(unchanged)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep `clean` away while a build works with the store; builds do not keep each other away."""
        self.root.mkdir(parents=True, exist_ok=True)
        for path in self.root.iterdir():
            if path.is_symlink() and path.exists() and path.stat().st_mode & stat.S_IWOTH:
                raise MachineError(
                    "bad-path",
                    "A part of the cache can be changed by everybody.",
                    where=path,
                    why=f"It is a link to {path.readlink()}, where every user of this machine may write.",
                    fix="Remove the link, or take that permission away (`chmod o-w`).",
                )
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
            # It takes the same lock as `in_use`, flock(2), but alone.
            alone = FileLock(self._in_use).acquire(blocking=False)
        except Timeout:
            raise MachineError(
                "cache-busy",
                "A build is running with this cache.",
                where=self.root,
                why="What is cleaned away could be what it is about to read.",
                fix="Wait for the build to end, then run `./inv clean` again.",
            ) from None
        with alone:
            yield

    @property
    def _in_use(self) -> Path:
        return self.root / ".in-use"


_PARTS = ("downloads", "blobs", "layers", "facts", "reports")
_TREES = ("compile/*", "sources/*/*", "ccache/*")
"""Folders that are only useful as a whole: compiled trees, checked-out sources, the compilers' caches."""
DAY = 86_400
HOUR = 3600


@dataclass(frozen=True)
class Cleaned:
    """The result of a cleaning, or of a dry run."""

    files: int
    freed: int
    kept: int


def clean(store: Store, *, older_than: float | None = None, dry_run: bool = False) -> Cleaned:
    """Remove files that were not used for this many days, or all; a dry run only counts them."""
    with store.for_cleaning():
        files = [path for part in _PARTS for path in (store.root / part).glob("**/*") if path.is_file()]
        leftovers = [path for path in files if path.name.startswith(WRITING) or path.suffix == ".lock"]
        trees = [path for pattern in _TREES for path in store.root.glob(pattern) if path.is_dir()]
        entries = list(map(_entry, {*files, *trees} - {*leftovers}))
        old = [entry for entry in entries if older_than is None or entry[0] < time.time() - older_than * DAY]
        removed = [path for _, path, _ in old]
        total, freed = (sum(size for _, _, size in group) for group in (entries, old))
        if not dry_run:
            # Recent leftovers stay, because `./inv lock` uses the cache without holding the store.
            stale = (path for path in leftovers if path.stat().st_mtime < time.time() - HOUR)
            for path in [*removed, *stale]:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            store.sweep()
    return Cleaned(len(removed), freed, total - freed)


def _entry(path: Path) -> tuple[float, Path, int]:
    """Return the last use and the size of a file or tree; the top level of a tree shows when it was last used."""
    status = path.stat()
    if not path.is_dir():
        # Not every mount keeps atime; `mark_used` sets both.
        return max(status.st_atime, status.st_mtime), path, status.st_size
    used = max(part.stat().st_mtime for part in (path, *path.iterdir()) if not part.is_symlink())
    return used, path, sum(file.lstat().st_size for file in path.rglob("*") if file.is_symlink() or not file.is_dir())
