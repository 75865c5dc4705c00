"""Files for the program's other processes, in a folder that no other user can read or change."""

import os
import threading
from contextlib import suppress
from pathlib import Path

PLACE = "/tmp"  # noqa: S108 - the folder in it is checked before each use
LONGEST = 1_000_000


def write(name: str, text: str) -> str:
    """Write a new file and return its path; raise OSError if the folder belongs to somebody else."""
    path = f"{PLACE}/imagefactory-{os.getuid()}"
    Path(path).mkdir(0o700, exist_ok=True)
    folder = _open_folder(path)
    try:
        new = f".{name}.{os.getpid()}.{threading.get_ident()}"
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        with os.fdopen(file, "w", encoding="utf-8") as open_file:
            open_file.write(text)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)  # whoever reads meanwhile gets the old or the new
    finally:
        os.close(folder)
    return f"{path}/{name}"


def read(name: str) -> str:
    """Return the text of a file; raise OSError if there is none of our own."""
    folder = _open_folder(f"{PLACE}/imagefactory-{os.getuid()}")
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(file, encoding="utf-8", errors="replace") as open_file:
        return open_file.read(LONGEST)


def exists(name: str) -> bool:
    return Path(f"{PLACE}/imagefactory-{os.getuid()}", name).exists()


def forget(*names: str) -> None:
    with suppress(OSError):
        folder = _open_folder(f"{PLACE}/imagefactory-{os.getuid()}")
        for name in names:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
        os.close(folder)


def _open_folder(path: str) -> int:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    found = os.fstat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        os.close(folder)
        raise PermissionError(f"{path} is not ours alone")
    return folder
