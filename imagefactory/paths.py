"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

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
