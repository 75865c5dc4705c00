"""The flags of servers: what a version accepts, recorded from its sources."""

from __future__ import annotations

from typing import ClassVar

from imagefactory.project.locks.files import Lock
from imagefactory.project.project import Project
from imagefactory.project.server_versions import server_name


class FlagLock(Lock):
    """The flags of one version of a server, with the values that they take, and its environment variables."""

    header: ClassVar[str] = "The flags of one version of a server, as its sources define them."
    maker: ClassVar[str] = "lock --flags"
    file: ClassVar[str] = "{}/flags.toml"
    named_by: ClassVar[tuple[str, ...]] = ("version",)

    version: str
    flags: dict[str, str]
    """The values of each flag, separated by spaces; empty if it takes any. A key of a JSON value follows a dot."""
    switches: tuple[str, ...] = ()  # the flags that need no value
    variables: tuple[str, ...] = ()


def recorded_version(project: Project, version: str) -> str:
    """Return the version whose flags stand for another's: the first of the same server and release."""
    versions = project.matrix.versions
    release = versions[version].release
    same = (
        name
        for name, other in versions.items()
        if release is not None and other.release == release and server_name(name) == server_name(version)
    )
    return next(same, version)


def flags_of(project: Project, version: str) -> FlagLock | None:
    """Return the flags of a version; None if they are not on record, as for a git reference."""
    path = FlagLock.path(project.locks, recorded_version(project, version))
    return FlagLock.read(path) if path.exists() else None
