"""Describes versions of servers: where they come from, and what they need besides."""

from __future__ import annotations

from functools import cached_property
from operator import not_
from typing import Annotated, Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from imagefactory.project.compile_choices import CompileChoices, choice_for
from images.shipped.values import HubRepo, Name, VersionText


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement:
        raise PydanticCustomError(
            "requirement", "{text} is not a requirement such as name==1.0", {"text": repr(text)}
        ) from None
    return text


class _Model(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=True)


class Override(_Model):
    """A requirement that replaces what packages themselves ask for, and why that is safe."""

    requirement: Annotated[str, AfterValidator(_requirement)]
    reason: Annotated[str, Field(min_length=10)]


class ServerVersion(_Model):
    """A release of a server, or a git reference that is compiled."""

    release: VersionText | None = None
    git: HubRepo | None = None
    ref: str | None = None
    counts_as: VersionText | None = None
    """The version that a git reference counts as among the releases."""
    compile: CompileChoices = "published"
    """What we compile: nothing (`published`), the kernels that matter on the chip (`graft`) or all of vLLM (`whole`),
    and the packages listed; for every arch with a GPU, or by arch. A git reference is always compiled whole."""
    also: list[str] = []
    """Additional requirements on machines with a GPU, beyond the server's and the arch's."""
    indexes: list[Annotated[str, StringConstraints(pattern=r"^https://")]] = []
    """Additional package indexes for these requirements."""
    local_versions: list[Name] = []
    """Local version labels to accept for these requirements (torch 2.10.0+cu130)."""

    extras: Annotated[list[Name], Field(exclude_if=not_)] = []
    """Extras of the server's distribution to install: b12x stands for vllm[b12x]."""
    overrides: Annotated[list[Override], Field(exclude_if=not_)] = []
    """Requirements that replace those of every package."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.release is None) == (self.git is None):
            raise PydanticCustomError("origin", "give either `release`, or `git` with `ref` and `counts_as`")
        if self.git and not (self.ref and self.counts_as):
            raise PydanticCustomError("origin", "a `git` version needs `ref` and `counts_as`")
        archs = self.compile if isinstance(self.compile, dict) else {"": ""}
        if self.git and any(choice_for(self.compile, arch)[0] == "graft" for arch in archs):
            raise PydanticCustomError(
                "compile", "only a `release` has a published wheel to graft kernels into"
            )
        if self.extras and (self.git or self.compile != "published"):
            raise PydanticCustomError("extras", "only a published wheel has `extras`")
        return self

    @cached_property
    def version(self) -> Version:
        """The version that ranges are compared with."""
        return Version(self.release or self.counts_as or "")

    def within(self, specifier: str) -> bool:
        """Return whether this version is in a range; development versions count."""
        return SpecifierSet(specifier).contains(self.version, prereleases=True)
