"""Finds out who else can write to a cache: what others put there could end up in images."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from imagefactory.errors.store import SharedCacheError

_DEEPEST = 3
"""The depth of folders that hold files, such as facts/KIND/ab."""
_TREES = frozenset({"scratch", "compile", "sources", "ccache"})
"""Folders whose files are not named by a hash; they are as safe as the folder above them."""


def refuse_writable_by_others(root: Path) -> None:
    """Raise SharedCacheError if somebody else owns a folder of the cache, or can write to one."""
    for folder in _folders(root):
        why = _who_else(folder.stat())
        if why is not None:
            raise SharedCacheError(
                "Others can write to the cache.",
                where=folder,
                why=f"{why} What they put there could end up in an image.",
                fix=f"If it is yours alone: `chmod 700 {root}`, and `invoke clean --everything` if others may have "
                "written to it. If it is shared on purpose: FACTORY_SHARED_CACHE=checked (docs/scale.md). Otherwise, "
                "set FACTORY_CACHE to a folder of your own.",
            )


def _folders(root: Path) -> Iterator[Path]:
    """List the folders of a cache that others can reach."""
    if not root.is_dir():
        return
    yield root
    if root.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH):
        yield from _below(root, 1)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        below = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in below:
        yield path
        if depth < _DEEPEST and path.name not in _TREES:
            yield from _below(path, depth + 1)


def _who_else(folder: os.stat_result) -> str | None:
    """Return a sentence about who else can write to a folder; None if only this user and root can."""
    user = os.geteuid()
    if folder.st_uid not in (user, 0):
        return f"It belongs to {_user_name(folder.st_uid)}."
    if folder.st_mode & stat.S_IWOTH:
        return "Every user can write to it."
    if folder.st_mode & stat.S_IWGRP and not _is_own_group(folder.st_gid, user):
        return f"The group {_group_name(folder.st_gid)} can write to it."
    return None


def _is_own_group(gid: int, user: int) -> bool:
    """Return whether a group is the user's own, as Debian and others create one for every user."""
    try:
        name, group = pwd.getpwuid(user).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the user {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
