"""Writes files atomically: neither a reader nor a crash ever sees half of one."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from imagefactory.errors import MachineError

WRITING = ".writing-"  # the prefix of unfinished files and folders


@contextmanager
def writing(target: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that becomes `target` if the block succeeds, and is deleted otherwise."""
    with translating_disk_full(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=WRITING)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            adopt(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    with writing(path) as file:
        file.write(text.encode())


def adopt(file: Path, target: Path) -> None:
    """Flush a finished file to disk and move it to its place, which may be on another disk."""
    with translating_disk_full(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        file.chmod(0o644)  # mkstemp lets nobody else read it
        with file.open("rb") as written:
            os.fsync(written.fileno())  # before the rename: after a crash, the name may not lead to an empty file
            try:
                file.replace(target)
            except OSError as error:
                if error.errno != errno.EXDEV:  # another file system
                    raise
                with writing(target) as copy:
                    shutil.copyfileobj(written, copy, 1 << 20)
                file.unlink()


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def translating_disk_full(target: Path) -> Iterator[None]:
    """Turn an OSError about a full disk into an error with a remedy."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise MachineError(
            "disk-full",
            "There is no space left on the disk.",
            where=target,
            why=str(error.strerror),
            fix="Free some space, run `./inv clean`, or set FACTORY_CACHE to a folder on a larger disk.",
        ) from None
