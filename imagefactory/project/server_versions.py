"""Describes versions of servers: their names, where they come from, and what we compile of them.

vLLM's versions are named by their number (0.32.0), those of any other server start with its name (sglang-0.5.21).
"""

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Annotated, Any, Final, Literal, Self, get_args

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from imagefactory.errors import did_you_mean
from images.shipped.values import Distribution, HubRepo, Name, VersionText

VLLM: Final = "vllm"
TITLES: Final = {VLLM: "vLLM", "sglang": "SGLang"}  # the servers by their key in matrix.yaml


def server_name(version: str) -> str:
    prefix, dash, _ = version.partition("-")
    return prefix if dash and prefix in TITLES else VLLM


def version_name(server: str, key: str) -> str:
    return key if server == VLLM else f"{server}-{key}"


def version_key(version: str) -> str:
    """Return the key that a version has below its server in matrix.yaml."""
    return version if server_name(version) == VLLM else version.partition("-")[2]


def version_title(version: str) -> str:
    """Return what messages call a version: vLLM 0.32.0."""
    return f"{TITLES[server_name(version)]} {version_key(version)}"


KernelKind = Literal["published", "graft", "whole"]
KINDS: tuple[KernelKind, ...] = get_args(KernelKind)


def _check(value: Any) -> Any:  # noqa: ANN401 - whatever YAML holds
    """Report mistakes in plain words; a union of types would report one for each of them."""
    why = "" if value != {} else "name an arch and what to compile for it"
    for arch, choice in value.items() if isinstance(value, dict) else [("", value)]:
        at, words = f"{arch}: " if arch else "", choice if isinstance(choice, list) else [choice]
        if not words or not all(isinstance(word, str) for word in words):
            why = f"{at}write {', '.join(KINDS)}, or a list of packages"
        elif isinstance(choice, str) and choice not in KINDS:
            why = f"{at}there is no {choice!r}: {did_you_mean(choice, KINDS)}"
        elif len([word for word in words if word in KINDS]) > 1:
            why = f"{at}choose one of {', '.join(KINDS)}"
    if why:
        raise PydanticCustomError("compile", "{text}", {"text": why})
    return value


Choice = KernelKind | Annotated[list[Distribution], Field(min_length=1)]
CompileChoices = Annotated[Choice | dict[Name, Choice], BeforeValidator(_check)]


def choice_for(choices: Choice | Mapping[str, Choice], arch: str) -> tuple[KernelKind, tuple[str, ...]]:
    """Return how an arch gets vLLM's kernels, and the other packages that are compiled for it."""
    choice: str | Sequence[str]
    choice = choices.get(arch, "published") if isinstance(choices, Mapping) else choices
    words = (choice,) if isinstance(choice, str) else tuple(choice)
    kinds: list[KernelKind] = [kind for kind in KINDS if kind in words]
    return (*kinds, KINDS[0])[0], tuple(word for word in words if word not in KINDS)


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
    until: Annotated[str, AfterValidator(_requirement)] | None = None
    """What packages themselves ask for: `./inv news` drops the override once the index can meet that."""


class ServerVersion(_Model):
    """A release of a server, or a git reference that is compiled."""

    release: VersionText | None = None
    git: HubRepo | None = None
    ref: str | None = None
    counts_as: VersionText | None = None  # the version that a git reference counts as among the releases
    compile: CompileChoices = "published"
    """What we compile: nothing (`published`), the kernels that matter on the chip (`graft`) or all of vLLM (`whole`),
    and the packages listed; for every arch with a GPU, or by arch. A git reference is always compiled whole."""
    extras: list[Name] = []  # extras of the server's distribution to install: b12x stands for vllm[b12x]
    flags: Annotated[dict[str, dict[str, str]], Field(exclude=True)] = {}
    """Flags of its images, by the weights of the model; they replace the model's. No lock changes with them."""
    overrides: list[Override] = []  # requirements that replace those of every package

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.release is None) == (self.git is None):
            raise PydanticCustomError("origin", "give either `release`, or `git` with `ref` and `counts_as`")
        if self.git and not (self.ref and self.counts_as):
            raise PydanticCustomError("origin", "a `git` version needs `ref` and `counts_as`")
        archs = self.compile if isinstance(self.compile, dict) else {"": ""}
        if self.git and any(choice_for(self.compile, arch)[0] == "graft" for arch in archs):
            raise PydanticCustomError("compile", "only a `release` has a published wheel to graft kernels into")
        if self.extras and (self.git or self.compile != "published"):
            raise PydanticCustomError("extras", "only a published wheel has `extras`")
        return self

    @cached_property
    def version(self) -> Version:
        return Version(self.release or self.counts_as or "")

    def within(self, specifier: str) -> bool:
        return _contains(specifier, self.version)


@cache  # a matrix has few ranges and versions, and asks about each pair for every model and arch
def _contains(specifier: str, version: Version) -> bool:
    return SpecifierSet(specifier).contains(version, prereleases=True)
