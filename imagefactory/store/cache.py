"""The store: downloads by sha256, layers by key, blobs by digest, each written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from platformdirs import user_cache_path

from imagefactory.environment.paths import expand_home
from imagefactory.errors.layers import StoreBusyError
from imagefactory.errors.store import DiskFullError
from imagefactory.store.digests import Digest, Sha256

WRITING = ".writing-"
"""How the names of files begin that are not finished."""


def default_root() -> Path:
    """Give `FACTORY_CACHE`, else the user's cache folder."""
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
        """Say where a downloaded file with this hash is, or would be."""
        return self.root / "downloads" / sha256[:2] / sha256

    def layer(self, key: Sha256) -> Path:
        """Say where the result of building a layer (diff_id, digest, size) is recorded."""
        return self.root / "layers" / key[:2] / f"{key}.json"

    def owners(self, key: Sha256) -> Path:
        """Say where it is noted which package owns each path of a layer."""
        return self.layer(key).with_suffix(".owners")

    def blob(self, digest: Digest) -> Path:
        """Say where a blob is, or would be."""
        algorithm, _, value = digest.partition(":")
        return self.root / "blobs" / algorithm / value

    def facts(self, kind: str, sha256: Sha256) -> Path:
        """Say where small facts read from a file (its zip directory, its architectures) are kept."""
        return self.root / "facts" / kind / sha256[:2] / f"{sha256}.json"

    def excerpt(self, key: Sha256, sha256: Sha256) -> Path:
        """Say where the part of a file is, or would be, that a layer needs of it."""
        return self.root / "excerpts" / key[:2] / f"{key}-{sha256}"

    def input(self, key: Sha256, sha256: Sha256) -> Path:
        """Say where a layer finds one of its inputs: the whole file, or the part that it needs."""
        whole, part = self.download(sha256), self.excerpt(key, sha256)
        return part if part.exists() and not whole.exists() else whole

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Lend a folder for work in progress, on the disk of the store; afterwards it is gone."""
        parent = self.root / "scratch"
        with translating_disk_full(parent):
            parent.mkdir(parents=True, exist_ok=True)
            # Nobody may sweep the folder before it is marked as taken.
            with locked(parent / ".lock"):
                folder = Path(tempfile.mkdtemp(dir=parent))
                taken = (folder / ".taken").open("w")
                fcntl.flock(taken, fcntl.LOCK_EX)
        with taken:
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what killed builds left; the folders of those that are alive are locked, and stay."""
        parent = self.root / "scratch"
        if not parent.is_dir():
            return
        with locked(parent / ".lock"):
            for folder in (path for path in parent.iterdir() if path.is_dir()):
                with (folder / ".taken").open("w") as taken:
                    try:
                        fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    shutil.rmtree(folder, ignore_errors=True)

    def adopt(self, file: Path, target: Path) -> None:
        """Move a finished file to its place, once it is safely on disk."""
        with translating_disk_full(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            file.chmod(0o644)
            with file.open("rb") as written:
                os.fsync(written.fileno())
            file.replace(target)

    def mark_used(self, *paths: Path) -> None:
        """Note that files were of use just now: `clean` takes the longest unused first."""
        for path in paths:
            with suppress(OSError):  # somebody else's file, or a disk that is read only
                os.utime(path)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep `clean` away while a build works with the store; builds do not keep each other away."""
        with self._usage_lock(fcntl.LOCK_SH):
            yield

    @contextmanager
    def for_cleaning(self) -> Iterator[None]:
        """Hold the store alone; refuse while a build uses it."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._usage_lock(fcntl.LOCK_EX | fcntl.LOCK_NB))
            except BlockingIOError:
                raise StoreBusyError(
                    "A build is running with this cache.",
                    where=self.root,
                    why="What is cleaned away could be what it is about to read.",
                    fix="Wait for the build to end, then run `invoke clean` again.",
                ) from None
            yield

    @contextmanager
    def _usage_lock(self, mode: int) -> Iterator[None]:
        with translating_disk_full(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / ".in-use").open("a")
        with file:
            fcntl.flock(file, mode)
            yield

    @contextmanager
    def writing(self, target: Path) -> Iterator[BinaryIO]:
        """Open a temporary file that becomes `target` when the block ends well, and vanishes otherwise."""
        with translating_disk_full(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=WRITING)
            temporary = Path(name)
            try:
                with os.fdopen(handle, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                temporary.chmod(0o644)
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Wait until nobody else holds this file; a process that dies lets go of it."""
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_disk_full(error: OSError) -> bool:
    """Tell a full disk (or a used-up quota) from other failures."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def translating_disk_full(target: Path) -> Iterator[None]:
    """Turn "no space left" into an error with a remedy."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DiskFullError(
            "There is no space left to write to.",
            where=target,
            why=str(error.strerror),
            fix="Free some space, run `invoke clean`, or set FACTORY_CACHE to a folder on a larger disk.",
        ) from None
