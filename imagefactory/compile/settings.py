"""Reads compile.yaml, which lists the compilers and sources of kernels, and adds those of a new release."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, get_args

from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from imagefactory.errors import ConfigError
from imagefactory.project.bases import Base
from imagefactory.project.server_versions import ServerVersion
from imagefactory.project.wording import in_words, plainly
from imagefactory.store.atomic import write_text
from imagefactory.store.paths import read_text
from images.shipped.values import Distribution, HubRepo, Name, Specifier
from images.shipped.yamlfile import read_yaml

FILE = "images/compile.yaml"
PARTS = "cmake/external_projects"
What = Literal["vllm", "flashinfer"]
WHAT: tuple[What, ...] = get_args(What)
Ref = Annotated[str, StringConstraints(pattern=r"^([\w.-]+/[\w.-]+@)?[\w.-]+$")]
RelativePath = Annotated[str, StringConstraints(pattern=r"^[\w-][\w./-]*$")]
RelativePattern = Annotated[str, StringConstraints(pattern=r"^vllm/[\w*-][\w.*-]*$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Wheels(_Model):
    """The wheels of the toolchain."""

    cuda: list[Distribution]  # wheels whose version is that of `cuda`
    others: list[Distribution]
    without: list[Distribution] = []  # requirements of torch that compiling does not need


class Cost(_Model):
    """The memory and disk space that a compile needs."""

    job_gb: Annotated[float, Field(gt=0)]  # memory per compiler process
    disk_gb: Annotated[float, Field(gt=0)]


class CarriedFiles(_Model):
    """Files that a whole compile takes over from the published wheel of the same release."""

    vllm: Specifier
    files: Annotated[list[RelativePattern], Field(min_length=1)]
    reason: Annotated[str, Field(min_length=10)]


class GraftSettings(_Model):
    """Which extensions of the published wheel a grafted one replaces."""

    extensions: Annotated[dict[str, Specifier], Field(min_length=1)]
    """The extensions whose kernels matter on a chip, and the vLLM versions that have them."""
    other_chips: dict[str, Annotated[str, Field(min_length=10)]] = {}
    """Operators that a compile for one chip may lack, and why."""

    def extensions_of(self, version: ServerVersion) -> tuple[str, ...]:
        return tuple(name for name, versions in self.extensions.items() if version.within(versions))


class SourceSettings(_Model):
    """A dependency that vLLM's CMake would fetch with git."""

    git: HubRepo
    variable: Annotated[str, StringConstraints(pattern=r"^([A-Z0-9_]+|FETCHCONTENT_SOURCE_DIR_[A-Z0-9_-]+)$")]
    marker: RelativePath  # a file that a folder must contain to be accepted as this project
    refs: dict[Name, Ref]  # the commit or tag of each vLLM version, after `owner/name@` of another repository
    folder: RelativePath | None = None  # the subfolder that the variable names, if not the whole repository
    part: Name | None = None  # the file in cmake/external_projects that uses it; some targets do without
    targets: list[str] = []  # the targets of vLLM's CMake that need it
    submodules: list[RelativePath] = []

    @property
    def is_option(self) -> bool:
        """Whether the variable is CMake's own, which is passed as an option and not read from the environment."""
        return self.variable.startswith("FETCHCONTENT_SOURCE_DIR_")

    def reference(self, vllm: str) -> tuple[str, str]:
        repository, _, commit = self.refs[vllm].rpartition("@")
        return repository or self.git, commit


class CompileSettings(_Model):
    """Everything in compile.yaml."""

    cuda: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
    toolchain: Base  # the Debian system to compile in
    wheels: Wheels
    costs: dict[What, Cost]
    carried: list[CarriedFiles] = []
    graft: GraftSettings
    sources: dict[Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]+$")], SourceSettings]

    @property
    def requirements(self) -> list[str]:
        cuda = [f"{name}=={self.cuda}.*" for name in self.wheels.cuda]
        return [*cuda, *self.wheels.others]

    @property
    def system(self) -> dict[str, str]:
        """The Python, glibc and CUDA that compiled code is for."""
        return {"python": self.toolchain.python, "glibc": self.toolchain.glibc, "cuda": self.cuda}

    def carried_by(self, version: ServerVersion) -> tuple[str, ...]:
        carried = (entry for entry in self.carried if version.within(entry.vllm))
        return tuple(pattern for entry in carried for pattern in entry.files)

    def sources_of(self, vllm: str, version: ServerVersion) -> dict[str, SourceSettings]:
        """Return the dependencies of a vLLM version; for a git reference, those of the release before it."""
        listed = self.listed_as(vllm, version)
        return {name: source for name, source in self.sources.items() if listed in source.refs}

    def listed_as(self, vllm: str, version: ServerVersion) -> str:
        return vllm if any(vllm in source.refs for source in self.sources.values()) else self.nearest(version)

    def nearest(self, version: ServerVersion) -> str:
        """Return the newest release with known sources that is not newer than a version."""
        releases = sorted({Version(name) for source in self.sources.values() for name in source.refs})
        older = [release for release in releases if release <= version.version]
        return str((older or releases)[-1 if older else 0])


def load_settings(root: Path) -> CompileSettings:
    with plainly(root):
        source = read_yaml(root / FILE, FILE)
    try:
        return CompileSettings.model_validate(source.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        first = min(details, key=lambda detail: source.location(detail["loc"]).line or 0)
        raise ConfigError(
            "bad-compile-data",
            f"{'.'.join(str(part) for part in first['loc'])} is wrong.",
            where=source.location(first["loc"]),
            why=f"{in_words(first['msg'])}.",
            fix="Correct the value; docs/schemas/compile.schema.json describes every key.",
        ) from None


def add_references(root: Path, release: str, previous: str, read: Callable[[str], str | None]) -> list[str]:
    """Add the references of a release after those of the one before; return what has to be done by hand."""
    path = root / FILE
    text, by_hand = read_text(path), []
    sources = load_settings(root).sources
    main = read("CMakeLists.txt") or ""
    parts = set(re.findall(rf"{PARTS}/(\w+)\.cmake", main))
    for name, source in sources.items():
        if previous not in source.refs or (source.part and source.part not in parts):
            continue
        origin = fetched((read(f"{PARTS}/{source.part}.cmake") or "") if source.part else main)
        if origin is None:
            by_hand.append(f"`{FILE}`, sources.{name}: its commit for {release} cannot be read from vLLM's CMake.")
            continue
        repository, commit = origin
        reference = commit if repository.lower() == source.git.lower() else f"{repository}@{commit}"
        # The entry before is in the block of this source, on a line of its own or in a list on one.
        entry = rf'(\n  {re.escape(name)}:\n(?:    .*\n)*?.*?)((?<=\n)      |, |{{)("{re.escape(previous)}": [^\s,}}]+)'
        if at := re.search(entry, text):
            between = f"\n{at[2]}" if at[2].isspace() else ", "
            text = f'{text[: at.end()]}{between}"{release}": {reference}{text[at.end() :]}'
    unknown = sorted(parts - {source.part for source in sources.values()})
    by_hand += [f"`{FILE}` does not know {part}, which vLLM {release} fetches to compile." for part in unknown]
    write_text(path, text)
    return by_hand


def fetched(cmake: str) -> tuple[str, str] | None:
    """Return the repository and the commit or tag that a CMake file fetches; of several the last one, for CUDA."""
    lines = "\n".join(line for line in cmake.splitlines() if not line.lstrip().startswith("#"))
    values: dict[str, str] = dict(re.findall(r'set\((\w+) +"?([^\s")]+)"?\)', lines))

    def last(key: str) -> str:
        word: str = ["", *re.findall(rf'{key} +"?([^\s")]+)', lines)][-1]
        return values.get(word.removeprefix("${").removesuffix("}"), word)

    repository = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?", last("GIT_REPOSITORY"))
    return (repository[1], last("GIT_TAG")) if repository and last("GIT_TAG") else None
