"""Cleans the store by age, by size or entirely, but never while a build uses it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imagefactory.store.atomic import WRITING
from imagefactory.store.cache import Store

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


def clean(
    store: Store, *, older_than: float | None = None, larger_than: int | None = None, dry_run: bool = False
) -> Cleaned:
    """Remove the least recently used files; without a limit, all files.

    Args:
        store: the store to clean.
        older_than: remove files that were not used for this many days.
        larger_than: then continue, oldest first, until the store has at most this many bytes.
        dry_run: only count, and remove nothing.
    """
    with store.for_cleaning():
        files = sorted(_files(store), key=lambda item: (item[1], item[0]))
        total = sum(size for _, _, size in files)
        everything = older_than is None and larger_than is None
        horizon = time.time() - (older_than or 0) * DAY
        removed: list[Path] = []
        freed = 0
        for path, used, size in files:
            too_old = older_than is not None and used < horizon
            too_much = larger_than is not None and total - freed > larger_than
            if everything or too_old or too_much:
                removed.append(path)
                freed += size
        if not dry_run:
            for path in [*removed, *_leftovers(store)]:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            store.sweep()
    return Cleaned(len(removed), freed, total - freed)


def _files(store: Store) -> list[tuple[Path, float, int]]:
    """List the store's files with their last use and size."""
    status = {path: path.stat() for path in _everything(store) if not _is_leftover(path)}
    files = [(path, max(stat.st_atime, stat.st_mtime), stat.st_size) for path, stat in status.items()]
    folders = (folder for pattern in _TREES for folder in store.root.glob(pattern) if folder.is_dir())
    return [*files, *map(_tree, folders)]


def _tree(folder: Path) -> tuple[Path, float, int]:
    """Treat a folder as one file; its top level shows when it was last used."""
    used = max(path.stat().st_mtime for path in (folder, *folder.iterdir()) if not path.is_symlink())
    return folder, used, folder_size(folder)


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in a folder; those that vanish meanwhile count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 - much faster for large trees
    return total


def _leftovers(store: Store) -> Iterator[Path]:
    """List old lock files and unfinished files of killed processes.

    Recent ones stay, because `invoke lock` uses the cache without holding the store.
    """
    horizon = time.time() - HOUR
    return (path for path in _everything(store) if _is_leftover(path) and path.stat().st_mtime < horizon)


def _is_leftover(path: Path) -> bool:
    return path.name.startswith(WRITING) or path.suffix == ".lock"


def _everything(store: Store) -> Iterator[Path]:
    return (path for part in _PARTS for path in (store.root / part).glob("**/*") if path.is_file())
