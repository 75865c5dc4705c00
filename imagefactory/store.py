"""The store: downloads by sha256, layers by key, blobs by digest, each written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from platformdirs import user_cache_path

from imagefactory.content import Digest, Sha256
from imagefactory.errors import DiskFullError, StoreBusyError


def default_root() -> Path:
    """Give `FACTORY_CACHE`, else the user's cache folder."""
    override = os.environ.get("FACTORY_CACHE")
    return Path(override).expanduser().absolute() if override else user_cache_path("imagefactory")


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

    def scratch(self) -> Path:
        """Make a folder for work in progress, on the disk of the store."""
        parent = self.root / "scratch"
        with translating_disk_full(parent):
            parent.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(dir=parent, prefix=f"{os.getpid()}-"))

    def adopt(self, file: Path, target: Path) -> None:
        """Move a finished file to its place, once it is safely on disk."""
        with translating_disk_full(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb") as written:
                os.fsync(written.fileno())
            os.replace(file, target)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep `clean` away while a build works with the store; builds do not keep each other away."""
        with self._usage_lock(fcntl.LOCK_SH):
            yield

    @contextmanager
    def for_cleaning(self) -> Iterator[None]:
        """Hold the store alone; refuse while a build uses it."""
        try:
            with self._usage_lock(fcntl.LOCK_EX | fcntl.LOCK_NB):
                yield
        except BlockingIOError:
            raise StoreBusyError(
                "A build is running with this cache.",
                where=self.root,
                why="What is cleaned away could be what it is about to read.",
                fix="Wait for the build to end, then run `invoke clean` again.",
            ) from None

    @contextmanager
    def _usage_lock(self, mode: int) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".in-use").open("a") as file:
            fcntl.flock(file, mode)
            yield

    @contextmanager
    def writing(self, target: Path) -> Iterator[BinaryIO]:
        """Open a temporary file that becomes `target` when the block ends well, and vanishes otherwise."""
        with translating_disk_full(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=".writing-")
            try:
                with os.fdopen(handle, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.chmod(name, 0o644)
                os.replace(name, target)
            except BaseException:
                os.unlink(name)
                raise


@contextmanager
def translating_disk_full(target: Path) -> Iterator[None]:
    """Turn "no space left" into an error with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFullError(
            "There is no space left to write to.",
            where=target,
            why=str(error.strerror),
            fix="Free some space, run `invoke clean`, or set FACTORY_CACHE to a folder on a larger disk.",
        ) from None
