"""Paths and addresses as users write them."""

import errno
from pathlib import Path
from typing import BinaryIO
from urllib.parse import SplitResult, urlsplit

from imagefactory.errors import InputError, MachineError, UsageError


def expand_home(text: str, where: str) -> Path:
    """Expand a leading `~` or `~user`; `where` names the option or variable of the path."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise MachineError(
            "bad-path",
            f"{text.partition('/')[0]} has no home folder.",
            where=where,
            why="This machine has no such user, or the user has no home folder.",
            fix="Write the full path.",
        ) from None


def split_address(text: str, where: str) -> SplitResult:
    """Split a URL or path; `where` names its option or variable."""
    try:
        return urlsplit(text)
    except ValueError as error:
        raise UsageError(
            "bad-option",
            f"{text[:100]!r} is not a valid address.",
            where=where,
            why=f"{error}.",
            fix="Write a URL, such as https://host/path, or the path of a folder.",
        ) from None


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read; a pipe or a device is refused, for it could last for ever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "It is not a regular file", str(path))
    return path.open("rb")


def read_text(path: Path) -> str:
    """Read a text file; one that is no UTF-8 is named, which Python's decoder does not do."""
    try:
        return path.read_text("utf-8")
    except UnicodeError as error:
        raise InputError(
            "unreadable-text",
            "A file is damaged.",
            where=path,
            why=f"It is not text in UTF-8: {error}.",
            fix="Restore the file; if it is in the cache, delete it, and it will be created again.",
        ) from None
