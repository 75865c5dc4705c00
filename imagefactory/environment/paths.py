"""Paths and addresses as users write them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from imagefactory.errors.commands import OptionError
from imagefactory.errors.system import PathUnusableError


def expand_home(text: str, where: str) -> Path:
    """Replace a leading `~` or `~user`; `where` is the option or variable that the path stands in."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise PathUnusableError(
            f"{text.partition('/')[0]} is nobody's home.",
            where=where,
            why="This machine has no such user, or does not know the user's home folder.",
            fix="Write the whole path.",
        ) from None


def split_address(text: str, where: str) -> SplitResult:
    """Take a URL or a path apart; `where` is the option or variable that it stands in."""
    try:
        return urlsplit(text)
    except ValueError as error:
        raise OptionError(
            f"{text[:100]!r} is no address.",
            where=where,
            why=f"{error}.",
            fix="Write a URL, such as https://host/path, or the path of a folder.",
        ) from None
