"""Files for the program's other processes, in a folder that no other user can list or change.

Notes may be read by all who know their names: `docker exec -u OTHER CONTAINER health` asks about the server, too.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

PLACE = "/tmp"  # noqa: S108 - the folder in it is checked before each use
FIRST_PROCESS = "/proc/1"
LONGEST = 1_000_000


def write(name: str, text: str, *, secret: bool = False) -> str:
    """Write a new file and return its path; raise OSError if the folder belongs to somebody else."""
    user = os.getuid()
    path = _path(user)
    Path(path).mkdir(0o711, exist_ok=True)
    folder = _open_folder(user)
    try:
        new = f".{name}.{os.getpid()}.{threading.get_ident()}"
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644, dir_fd=folder)
        with os.fdopen(file, "w", encoding="utf-8") as open_file:
            open_file.write(text)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)  # whoever reads meanwhile gets the old or the new
    finally:
        os.close(folder)
    return f"{path}/{name}"


def read(name: str) -> str:
    """Return the text of a file; raise OSError if neither we nor the container's first user wrote it."""
    folder = _open_folder(_writer())
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(file, encoding="utf-8", errors="replace") as open_file:
        return open_file.read(LONGEST)


def exists(name: str) -> bool:
    return Path(_path(_writer()), name).exists()


def forget(*names: str) -> None:
    with suppress(OSError):
        folder = _open_folder(os.getuid())
        for name in names:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
        os.close(folder)


def _writer() -> int:
    """Return whose files to read: ours, else those of the user that the container was started as."""
    user = os.getuid()
    with suppress(OSError):
        return user if Path(_path(user)).exists() else Path(FIRST_PROCESS).stat().st_uid
    return user


def _path(user: int) -> str:
    return f"{PLACE}/imagefactory-{user}"


def _open_folder(user: int) -> int:
    path = _path(user)
    # Whoever may only pass through a folder cannot open it to read: O_PATH does without.
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    status = os.fstat(folder)
    if status.st_uid != user or status.st_mode & 0o022:
        os.close(folder)
        raise PermissionError(f"{path} can be changed by others")
    return folder
