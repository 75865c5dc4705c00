"""compile.yaml: with which compilers, and from which sources, kernels are compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from imagefactory.errors.kernels import CompileDataError
from imagefactory.matrix.field_types import DebianPackage
from imagefactory.matrix.matrix import Base, VllmVersion
from images.shipped.values import Distribution, HubRepo, Name, Specifier
from images.shipped.yamlfile import read_yaml

FILE = "images/compile.yaml"
What = Literal["vllm", "flashinfer"]
WHAT: tuple[What, ...] = get_args(What)
Ref = Annotated[str, StringConstraints(pattern=r"^([\w.-]+/[\w.-]+@)?[\w.-]+$")]
RelativePath = Annotated[str, StringConstraints(pattern=r"^[\w-][\w./-]*$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Toolchain(_Model):
    """A Debian system to compile in."""

    debian: Name
    python: Annotated[str, StringConstraints(pattern=r"^3\.[0-9]+$")]
    glibc: Annotated[str, StringConstraints(pattern=r"^2\.[0-9]+$")]
    gcc: Annotated[int, Field(ge=10)]
    packages: list[DebianPackage]

    def runs_on(self, base: Base) -> bool:
        """Say whether what is compiled here runs on a base: its libc must not be older."""
        return Version(self.glibc) <= Version(base.glibc)


class Wheels(_Model):
    """What a toolchain takes from wheels."""

    cuda: list[Distribution]
    """In the version of `cuda`."""
    others: list[Distribution]
    without: list[Distribution] = []
    """Requirements of torch that compiling does without."""


class CompilerNeed(_Model):
    """A source that needs a newer compiler than the oldest toolchain has."""

    what: What
    vllm: Specifier
    gcc: int
    reason: Annotated[str, Field(min_length=10)]


class Cost(_Model):
    """What compiling something takes."""

    job_gb: Annotated[float, Field(gt=0)]
    """Memory of one compiler."""
    disk_gb: Annotated[float, Field(gt=0)]


class FlashInferModules(_Model):
    """Which modules of FlashInfer are compiled ahead."""

    modules: Annotated[list[str], Field(min_length=1)]


class SourceSettings(_Model):
    """Something that vLLM's CMake would fetch with git."""

    git: HubRepo
    variable: Annotated[str, StringConstraints(pattern=r"^[A-Z0-9_]+$")]
    marker: RelativePath
    """What a folder must contain to be taken for this project."""
    refs: dict[Name, Ref]
    """The commit or tag of each vLLM version, after `owner/name@` where it is in another repository."""
    folder: RelativePath | None = None
    """The part of the repository that the variable names, where it is not all of it."""
    part: Name | None = None
    """The file of cmake/external_projects that uses it; a compile of some targets may leave that out."""
    targets: list[str] = []
    """The targets of vLLM's CMake that are made of it."""
    submodules: list[RelativePath] = []

    def reference(self, vllm: str) -> tuple[str, str] | None:
        """Give repository and commit (or tag) for a vLLM version, if that version uses it."""
        ref = self.refs.get(vllm)
        if ref is None:
            return None
        repository, _, commit = ref.rpartition("@")
        return repository or self.git, commit


class CompileSettings(_Model):
    """Everything in compile.yaml."""

    cuda: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
    toolchains: Annotated[dict[Name, Toolchain], Field(min_length=1)]
    packages: Annotated[list[DebianPackage], Field(min_length=1)]
    wheels: Wheels
    compilers: list[CompilerNeed] = []
    costs: dict[What, Cost]
    flashinfer: FlashInferModules
    sources: dict[Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]+$")], SourceSettings]

    @property
    def requirements(self) -> list[str]:
        """What a toolchain takes from wheels, beside torch and the build backends."""
        cuda = [f"{name}=={self.cuda}.*" for name in self.wheels.cuda]
        return [*cuda, *self.wheels.others]

    def need(self, what: What, version: VllmVersion) -> CompilerNeed | None:
        """Find what a source asks of the compiler."""
        return next(
            (
                need
                for need in self.compilers
                if need.what == what and SpecifierSet(need.vllm).contains(version.version, prereleases=True)
            ),
            None,
        )

    def toolchain_for(self, what: What, version: VllmVersion) -> str:
        """Choose the oldest toolchain whose compiler is new enough."""
        need = self.need(what, version)
        for name, toolchain in self.toolchains.items():
            if need is None or toolchain.gcc >= need.gcc:
                return name
        raise CompileDataError(
            f"No toolchain can compile {what} {version.version}.",
            where=f"{FILE}, toolchains",
            why=f"It needs GCC {need.gcc if need else ''}: {need.reason if need else ''}.",
            fix="Add a toolchain of a newer Debian.",
        )

    def sources_of(self, vllm: str, version: VllmVersion) -> dict[str, SourceSettings]:
        """List what a vLLM version takes from elsewhere; a git reference, what the release before it does."""
        if vllm in {name for source in self.sources.values() for name in source.refs}:
            return {name: source for name, source in self.sources.items() if vllm in source.refs}
        nearest = self.nearest(version)
        return {name: source for name, source in self.sources.items() if nearest in source.refs}

    def nearest(self, version: VllmVersion) -> str:
        """Name the newest release with known sources that is not newer than a version."""
        known = sorted({Version(name) for source in self.sources.values() for name in source.refs})
        older = [name for name in known if name <= version.version]
        return str((older or known)[-1 if older else 0])


def load_settings(root: Path) -> CompileSettings:
    """Read and check compile.yaml; a mistake is reported with its line."""
    source = read_yaml(root / FILE, FILE)
    try:
        return CompileSettings.model_validate(source.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        first = min(details, key=lambda detail: source.location(detail["loc"]).line or 0)
        raise CompileDataError(
            f"{'.'.join(str(part) for part in first['loc'])} is wrong.",
            where=source.location(first["loc"]),
            why=first["msg"],
            fix="Correct the value; docs/schemas/compile.schema.json describes every key.",
        ) from None
