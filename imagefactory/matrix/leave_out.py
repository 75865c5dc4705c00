"""Describes what images leave out although a wheel brings it, and why nothing misses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from imagefactory.matrix.bases import unique
from imagefactory.matrix.server_names import TITLES
from images.shipped.values import Distribution, Name, Specifier

Pattern = Annotated[str, StringConstraints(pattern=r"^[^/\s][^\s\\]*[^/\s\\]$")]


class LeaveOut(BaseModel):
    """A distribution that is not installed, or files of one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    distribution: Distribution
    files: Annotated[list[Pattern], AfterValidator(unique)] = []
    """Paths below site-packages, or below the environment (`bin/z3`); globs whose `*` crosses slashes. Empty: the whole
    distribution, with what only it requires."""
    beside: Distribution | None = None
    """The distribution that makes this one superfluous; where it is not installed, nothing is left out."""
    archs: Annotated[list[Name], AfterValidator(unique)] = []
    """Only on these archs. Empty: on all of them."""
    vllm: Specifier = ""
    """Only with these vLLM versions."""
    sglang: Annotated[Specifier | None, Field(exclude_if=lambda value: value is None)] = None
    """Only with these SGLang versions. An entry without any range holds for every server."""
    reason: Annotated[str, Field(min_length=10)]
    """Why nothing misses it."""

    def applies(self, arch: str, server: str, version: Version) -> bool:
        """Return whether something is to be left out on an arch, with a version of a server."""
        ranges = {name: getattr(self, name) for name in TITLES if getattr(self, name)}
        wanted = ranges.get(server, None if ranges else "")
        fits = wanted is not None and SpecifierSet(wanted).contains(version, prereleases=True)
        return fits and (not self.archs or arch in self.archs)

    def matching(self, pattern: str, paths: Iterable[str]) -> Iterator[str]:
        """Yield the paths below the environment that a pattern names; a wheel's metadata always stays."""
        for path in paths:
            name = path.partition("/site-packages/")[2] or path
            if fnmatchcase(name, pattern) and ".dist-info/" not in name:
                yield path


def arch_references(entries: Iterable[LeaveOut]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield each arch that an entry names, with its place in matrix.yaml."""
    for index, entry in enumerate(entries):
        for number, arch in enumerate(entry.archs):
            yield ("leave_out", index, "archs", number), arch
