"""Describes the Debian systems that images are based on, and what images leave out of their wheels."""

from collections.abc import Iterable, Iterator
from datetime import date
from fnmatch import fnmatchcase
from typing import Annotated

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from imagefactory.project.server_versions import TITLES
from images.shipped.values import Distribution, Name, Specifier


def unique(values: list[str]) -> list[str]:
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise PydanticCustomError("unique", "{text} appears twice", {"text": repr(twice)})
    return values


DebianPackage = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]+$")]
Day = Annotated[date, Field(strict=False)]  # a day, written as text: YYYY-MM-DD


class _Model(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=True)


class Base(_Model):
    """A Debian system that the images of an arch are based on."""

    debian: Name
    python: Annotated[str, StringConstraints(pattern=r"^3\.[0-9]+$")]
    glibc: Annotated[str, StringConstraints(pattern=r"^2\.[0-9]+$")]
    supported_until: Day | None = None
    """The last day on which Debian's security team supports the release; `plan` and `doctor` warn afterwards."""
    kept_for: Annotated[str, Field(min_length=10)] | None = None
    """Why images stay on it afterwards; the warning says so."""
    packages: Annotated[list[DebianPackage], Field(min_length=1), AfterValidator(unique)]

    def support_warning(self, today: date) -> str | None:
        """Return what is wrong with the support of this Debian on a day; that of Debian LTS does not count."""
        if self.supported_until is None or today <= self.supported_until:
            return None
        why = f"; it stays because {self.kept_for}" if self.kept_for else ""
        return f"Debian {self.debian} has had no regular security support since {self.supported_until}{why}"


Pattern = Annotated[str, StringConstraints(pattern=r"^[^/\s][^\s\\]*[^/\s\\]$")]


class LeaveOut(_Model):
    """A distribution that is not installed, or files of one; docs/slimming.md says how candidates are found."""

    distribution: Distribution
    files: Annotated[list[Pattern], AfterValidator(unique)] = []
    """Paths below site-packages, or below the environment (`bin/z3`); globs whose `*` crosses slashes. Empty: the whole
    distribution, with what only it requires."""
    beside: Distribution | None = None
    """The distribution that makes this one superfluous; where it is not installed, nothing is left out."""
    archs: Annotated[list[Name], AfterValidator(unique)] = []  # only on these archs. Empty: on all of them
    vllm: Specifier = ""  # only with these vLLM versions
    sglang: Specifier | None = None  # only with these SGLang versions; without any range, with every server
    reason: Annotated[str, Field(min_length=10)]  # why nothing misses it

    def applies(self, arch: str, server: str, version: Version) -> bool:
        """Return whether something is to be left out on an arch, with a version of a server."""
        ranges = {name: getattr(self, name) for name in TITLES if getattr(self, name)}
        specifier = ranges.get(server, None if ranges else "")
        fits = specifier is not None and SpecifierSet(specifier).contains(version, prereleases=True)
        return fits and (not self.archs or arch in self.archs)

    def matching(self, pattern: str, paths: Iterable[str]) -> Iterator[str]:
        """Yield the paths below the environment that a pattern names; a wheel's metadata always stays."""
        for path in paths:
            name = path.partition("/site-packages/")[2] or path
            if fnmatchcase(name, pattern) and ".dist-info/" not in name:
                yield path
