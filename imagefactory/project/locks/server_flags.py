"""The flags of servers: what a version accepts, recorded from its sources, and commands compared with that record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from imagefactory.project.locks.files import Lock
from imagefactory.project.project import Project
from imagefactory.project.server_versions import server_name

SPECULATIVE = "--speculative-config"


class FlagLock(Lock):
    """The flags of one version of a server, with the values that they take, and its environment variables."""

    header: ClassVar[str] = "The flags of one version of a server, as its sources define them."
    maker: ClassVar[str] = "lock --flags"
    file: ClassVar[str] = "{}/flags.toml"
    named_by: ClassVar[tuple[str, ...]] = ("version",)

    version: str
    flags: dict[str, str]
    """The values of each flag, separated by spaces; empty if it takes any. A key of a JSON value follows a dot."""
    switches: tuple[str, ...] = ()
    """The flags that need no value."""
    variables: tuple[str, ...] = ()

    def has(self, flag: str) -> bool:
        """Whether the server knows a flag, which may switch another off or set one key of a JSON value."""
        return self._positive(flag) in self.flags

    def is_switch(self, flag: str) -> bool:
        """Whether a flag needs no value."""
        return self._positive(flag) in self.switches

    def accepts(self, flag: str, value: str) -> bool:
        """Whether a value is among those of a flag; names of classes may be written in lower case."""
        choices = self.flags.get(self._positive(flag), "").split()
        return not choices or value in choices or value.upper() in choices

    def refused(self, command: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
        """Yield what the server does not know of a command and its environment."""
        for word, following in pairwise([*command, "--"]):
            flag, equals, value = word.partition("=")
            if not flag.startswith("--"):
                continue
            if not self.has(flag):
                yield flag
            elif not self.is_switch(flag):
                value = value if equals else following
                if not equals and following.startswith("--"):
                    yield f"{flag} without a value"
                elif not self.accepts(flag, value):
                    yield f"{flag} {value}"
                elif flag == SPECULATIVE:
                    yield from self._refused_keys(flag, json.loads(value))
        prefix = f"{server_name(self.version).upper()}_"
        yield from (name for name in variables if name.startswith(prefix) and name not in self.variables)

    def _refused_keys(self, flag: str, value: Mapping[str, Any]) -> Iterator[str]:
        for key, item in value.items():
            name = f"{flag}.{key}"
            if not self.has(name):
                yield name
            elif not self.accepts(name, str(item)):
                yield f"{name} {item}"

    def _positive(self, flag: str) -> str:
        name = flag.replace("_", "-") if flag not in self.flags else flag
        positive = f"--{name[5:]}" if name.startswith("--no-") else name
        return positive if name not in self.flags and positive in self.switches else name


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
