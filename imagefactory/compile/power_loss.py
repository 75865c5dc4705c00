"""Keeps a compile resumable through a power failure: files that may not have reached the disk are not believed.

ninja compiles again what its log does not list, so a killed compiler leaves no half-written object behind. A power
failure can: the kernel writes an object and its line in the log at different times. While a compile runs, its folder
has a mark that names the boot and a time; everything written before that time has been flushed. If the mark is found
after another boot, all files written since are removed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from imagefactory.store.atomic import write_text

MARK: Final = "running.json"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_INTERVAL: Final = 60.0
_NINJA: Final = (".ninja_log", ".ninja_deps")
"""ninja reads these as far as they are whole."""
_OBJECTS: Final = (".o", ".a", ".so")


@contextmanager
def marked(folder: Path, build: Path, *, boot: str | None = None) -> Iterator[Callable[[], None]]:
    """Mark a compile as running, and yield a function to call now and then, which flushes what is new.

    The mark is removed when the block ends in any way; a killed process leaves it, and its files are whole.
    """
    mark = Mark(folder / MARK, build, boot or _this_boot())
    mark.move()
    try:
        yield mark.move_if_due
    finally:
        mark.flush()
        mark.path.unlink(missing_ok=True)


def drop_doubtful(folder: Path, build: Path, *, boot: str | None = None) -> int:
    """Remove the files that a power failure may have damaged, and return how many there were."""
    try:
        mark = json.loads((folder / MARK).read_text("utf-8"))
        its_boot, flushed = str(mark["boot"]), float(mark["flushed"])
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError):
        its_boot, flushed = "", 0.0  # the mark itself was damaged, so anything may be
    if its_boot == (boot or _this_boot()):
        return 0
    doubtful = [
        path
        for path, status in _files(build)
        if status.st_mtime >= flushed or (status.st_size == 0 and path.suffix in _OBJECTS)
    ]
    for path in doubtful:
        path.unlink(missing_ok=True)
    return len(doubtful)


class Mark:
    """The time up to which everything in a build folder has been flushed."""

    def __init__(self, path: Path, build: Path, boot: str) -> None:
        self.path = path
        self.build = build
        self.boot = boot
        self.flushed = 0.0
        self._due = 0.0

    def move_if_due(self) -> None:
        """Flush and move the mark, once a minute."""
        if time.monotonic() >= self._due:
            self.move()

    def move(self) -> None:
        """Flush everything that was written since the mark, and set the mark to the time before that."""
        now = time.time()
        self.flush()
        self.flushed = now
        write_text(self.path, json.dumps({"boot": self.boot, "flushed": now}))
        self._due = time.monotonic() + _INTERVAL

    def flush(self) -> None:
        """Flush everything that was written since the mark."""
        for path, status in _files(self.build):
            if status.st_mtime >= self.flushed:
                _flush(path)


def _files(build: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for root, _, names in os.walk(build):
        for name in names:
            path = Path(root, name)
            with suppress(FileNotFoundError):  # compilers remove their temporary files
                if name not in _NINJA and path.is_file() and not path.is_symlink():
                    yield path, path.stat()


def _flush(path: Path) -> None:
    with suppress(FileNotFoundError, PermissionError), path.open("rb") as file:
        os.fsync(file.fileno())


def _this_boot() -> str:
    return _BOOT.read_text("ascii").strip() if _BOOT.exists() else ""
