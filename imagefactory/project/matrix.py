"""Loads and validates matrix.yaml, which describes what to build."""

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from imagefactory.errors import NO_REGISTRY, ConfigError, FactoryError, RegistryError, did_you_mean, unknown_name
from imagefactory.oci.registry.reference import Reference
from imagefactory.project.bases import Base, Day, LeaveOut, unique
from imagefactory.project.served_model import ServedModel
from imagefactory.project.server_versions import TITLES, VLLM, ServerVersion, version_name
from imagefactory.project.wording import in_words, plainly
from images.shipped.values import Condition, Distribution, Name, VersionText
from images.shipped.yamlfile import YamlFile, read_yaml

Platform = Literal["linux/arm64", "linux/amd64"]
Severity = Literal["critical", "high", "medium", "low"]  # worst first: VulnerabilityRules goes by the order
SmokeLevel = Literal["static", "container", "serve", "gpu"]
ArchList = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9][af]?( [0-9]+\.[0-9][af]?)*$")]
Sm = Annotated[str, StringConstraints(pattern=r"^sm_\d{2,3}[af]?$")]
Workflow = Annotated[str, StringConstraints(pattern=r"^\.github/workflows/[\w.-]+\.ya?ml@refs/(heads|tags)/[\w./-]+$")]
PLACEHOLDER: Final = "OWNER"  # in `registry` and `source`: whoever owns the repository that was cloned
SOURCE: Final = "org.opencontainers.image.source"  # registries link a package to the repository that it names
_GITHUB: Final = "https://github.com"
_ON_GITHUB = re.compile(r"(?:\w+://)?(?:[^@/]+@)?github\.com(?::\d+)?[:/]([A-Za-z0-9-]+/[\w.-]+?)(?:\.git)?/?")
Registry = Annotated[str, StringConstraints(pattern=r"^[\w.:-]+(/[\w.-]+)+$")]
TaggedImage = Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)+:[\w.-]+$")]


class _Model(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=True)


class Defaults(_Model):
    """The values for the parts of a target that the user leaves out."""

    vllm: str
    arch: str
    tags: str | None = None  # the version that short tags follow instead of `vllm`, where it can be built


class CubinPolicy(_Model):
    """Which machine code runs on an arch."""

    accept: Annotated[list[Sm], Field(min_length=1)]  # what runs, best first
    refuse: list[Sm] = []
    """Targets that look right but do not load; a library whose special kernels are all for these fails."""
    fp4: list[str] = []
    """Libraries (globs) whose FP4 kernels need an a or f target; elsewhere, Marlin kernels merely unpack FP4."""


class Tool(_Model):
    """A program from a wheel that the factory itself runs, on the machine it runs on."""

    distribution: Distribution
    version: VersionText


class MachineMemory(_Model):
    """The memory that a machine of an arch serves models from, in bytes; from documents, not measured."""

    total: Annotated[int, Field(gt=0)]
    free: Annotated[int, Field(gt=0)]  # what an idle machine has left
    unified: bool = False  # whether the GPU shares the host's memory


class Arch(_Model):
    """A kind of machine: its GPU, its platforms and the code that runs on it."""

    gpu: str | None = None
    capability: VersionText | None = None
    memory: MachineMemory | None = None  # what the site computes fits with; containers read the machine's own
    platforms: Annotated[list[Platform], Field(min_length=1), AfterValidator(unique)]
    base: str
    torch_cuda_arch_list: ArchList | None = None
    flashinfer_cuda_arch_list: ArchList | None = None
    cubins: CubinPolicy | None = None
    slim: bool = False  # whether images go without the GPU code that the chip cannot load
    distribution: Distribution = "vllm"  # the name of the vLLM distribution for this arch
    indexes: list[Annotated[str, StringConstraints(pattern=r"^https://")]] = []
    """Package indexes beyond the configured one."""
    local_versions: list[Name] = []  # local version labels to accept (torch 2.13.0+cpu), besides none
    also: list[str] = []  # requirements beyond vLLM's own
    without: list[Distribution] = []  # requirements of vLLM to leave out on this arch
    smoke: Annotated[list[SmokeLevel], Field(min_length=1), AfterValidator(unique)] = [
        "static", "container", "serve",
    ]  # fmt: skip
    """The smoke tests that an image must pass before it is tagged."""


class FlashInferModule(_Model):
    """A module of FlashInfer, which compiles what is called unless a wheel or a cache has it."""

    make: Annotated[str, StringConstraints(pattern=r"^flashinfer\.[\w.]+:\w+$")]
    """The function that describes it, after its Python module."""
    called_by: Annotated[list[Condition], Field(min_length=1)]
    why: Annotated[str, Field(min_length=10)]


class Conflict(_Model):
    """Two wheels that install the same paths, and which of them wins."""

    between: Annotated[list[Distribution], Field(min_length=2, max_length=2), AfterValidator(unique)]
    wins: Distribution
    reason: Annotated[str, Field(min_length=10)]

    @model_validator(mode="after")
    def _winner_is_a_party(self) -> Self:
        if self.wins not in self.between:
            raise PydanticCustomError("conflict", "`wins` must be one of the two in `between`")
        return self


class BrokenRecord(_Model):
    """A wheel whose RECORD is known to be wrong, and why it is accepted anyway."""

    wheel: Distribution
    reason: Annotated[str, Field(min_length=10)]


class Rule(_Model):
    """What holds for some combinations, such as that they cannot work, with the reason."""

    when: Condition
    reason: Annotated[str, Field(min_length=10)]


class Kept(_Model):
    """Why a version stays in the matrix though a newer one is there, and until when."""

    until: Day  # the last day; `plan` warns afterwards
    reason: Annotated[str, Field(min_length=10)]


class LoaderRule(Rule):
    """A rule that chooses how images load weights."""

    load_format: Annotated[str, StringConstraints(pattern=r"^[a-z_]+$")]


class VulnerabilityRules(_Model):
    """Which known vulnerabilities keep an image from its tags."""

    severity: Severity | None = None  # as bad as this or worse, if there is a fix
    ids: list[str] = []  # these, fixed or not
    accept: dict[str, Annotated[str, Field(min_length=10)]] = {}  # not these, each for a reason

    @property
    def refused(self) -> tuple[str, ...]:
        severities = get_args(Severity)
        return severities[: severities.index(self.severity) + 1] if self.severity else ()


class Matrix(_Model):
    """Everything in matrix.yaml."""

    registry: Registry
    source: Annotated[str, StringConstraints(pattern=r"^https://")]
    """The repository of this factory, whose workflows may sign; no image depends on it."""
    signers: Annotated[list[Workflow], Field(min_length=1)] = [".github/workflows/nightly.yml@refs/heads/main"]
    """The workflows of `source` that may sign images, each on the one branch or tag where it may."""
    vulnerabilities: VulnerabilityRules | None = None  # without it, none keeps an image from its tags
    defaults: Defaults
    bases: Annotated[dict[Name, Base], Field(min_length=1)]
    archs: Annotated[dict[Name, Arch], Field(min_length=1)]
    vllm: Annotated[dict[Name, ServerVersion], Field(min_length=1)]
    sglang: dict[Name, ServerVersion] = {}  # versions of SGLang; targets name them sglang-VERSION
    models: Annotated[dict[Name, ServedModel], Field(min_length=1)]
    flashinfer: dict[Annotated[str, StringConstraints(pattern=r"^\w+$")], FlashInferModule] = {}
    """What to compile ahead of time: for the wheel flashinfer-jit-cache, and beside the start of an image."""
    loaders: list[LoaderRule] = []
    """How images load weights: the first rule that holds decides, unless the model itself says it."""
    tools: dict[Name, Tool] = {}
    companions: dict[Name, TaggedImage] = {}  # images of others for compose files; locks/companions.toml has digests
    conflicts: list[Conflict] = []
    leave_out: list[LeaveOut] = []
    broken_records: list[BrokenRecord] = []
    exclude: list[Rule] = []
    known_faults: list[Rule] = []  # what is wrong with images that are built all the same; `plan` and the site say so
    merged: list[Rule] = []  # pull requests that a server has by now, and since when; `plan` and pages of images say so
    unlocked: list[Rule] = []  # why combinations that could be built have no lock, the first that holds; errors say so
    kept: dict[Name, Kept] = {}  # older versions, by their names in targets
    _checkout: Path | None = PrivateAttr(None)
    _registry: str = PrivateAttr("")

    @field_validator("registry")
    @classmethod
    def _lower_case(cls, registry: str) -> str:
        # Registries accept lower case only.
        return registry if PLACEHOLDER in registry else registry.lower()

    @field_validator("sglang")
    @classmethod
    def _releases_only(cls, versions: dict[str, ServerVersion]) -> dict[str, ServerVersion]:
        for name, version in versions.items():
            if version.release is None or version.compile != "published":
                raise PydanticCustomError("origin", "{name}: only vLLM is compiled; give a `release`", {"name": name})
        return versions

    @cached_property
    def versions(self) -> dict[str, ServerVersion]:
        """The versions of all servers, by their names in targets."""
        return {
            version_name(server, key): version for server in TITLES for key, version in getattr(self, server).items()
        }

    @property
    def identities(self) -> tuple[str, ...]:
        """The workflows that may sign, as sigstore's certificates name them; none while the repository is unknown."""
        # Somebody may have the placeholder's name on GitHub.
        return tuple(f"{self._known_source}/{signer}" for signer in self.signers if self._known_source)

    @property
    def effective_source(self) -> str:
        """The repository of this factory: `source`, or where the checkout comes from in place of the placeholder."""
        return self._known_source or self.source

    @property
    def source_annotation(self) -> dict[str, str]:
        """What links a package to its repository, for manifests that are not images; empty while that is unknown."""
        return {SOURCE: self._known_source} if self._known_source else {}

    @property
    def _known_source(self) -> str:
        if not self.source.startswith(f"{_GITHUB}/{PLACEHOLDER}/"):
            return self.source.rstrip("/").removesuffix(".git")
        return f"{_GITHUB}/{self._repository}" if self._repository else ""

    @property
    def effective_registry(self) -> str:
        """The repository for images: an option, FACTORY_REGISTRY, or the matrix's with the fork's owner for OWNER."""
        if self._registry:
            return str(Reference.parse(self._registry, "the --registry option"))
        if named := os.environ.get("FACTORY_REGISTRY"):
            return str(Reference.parse(named, "the variable FACTORY_REGISTRY"))
        if not self.registry.startswith(f"ghcr.io/{PLACEHOLDER}/"):
            return self.registry
        owner, _, _ = self._repository.partition("/")
        return self.registry.replace(PLACEHOLDER, owner.lower() or PLACEHOLDER)

    @property
    def _repository(self) -> str:
        """OWNER/NAME of the repository on GitHub that this checkout comes from; empty if it is unknown."""
        # Whoever clones a repository trusts it: `origin` decides whose signatures count. The workflow that runs may
        # have checked out somebody else's repository, so its own counts only where there is no `origin` on GitHub.
        running = os.environ.get("GITHUB_SERVER_URL", _GITHUB) + "/" + os.environ.get("GITHUB_REPOSITORY", "")
        match = _ON_GITHUB.fullmatch(self._origin) or _ON_GITHUB.fullmatch(running)
        return match[1] if match else ""

    @cached_property
    def _origin(self) -> str:
        """The address that the checkout was cloned from; empty if there is none."""
        if self._checkout is None or not (self._checkout / ".git").exists():
            return ""
        command = ["git", "-C", str(self._checkout), "config", "--get", "remote.origin.url"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)  # noqa: S603
        except (OSError, subprocess.SubprocessError):
            return ""
        return done.stdout.strip()

    @property
    def has_no_registry(self) -> bool:
        return PLACEHOLDER in self.effective_registry

    def require_registry(self, name: str = "") -> str:
        """Return the repository for images, or another one that was named; raise if it is only the placeholder."""
        name = name or self.effective_registry
        if PLACEHOLDER not in name:
            return name
        raise RegistryError(
            NO_REGISTRY,
            "No registry is set.",
            where="`registry` in matrix.yaml",
            why=f"{name} is a placeholder, and the checkout's `origin`, if any, is not on github.com.",
            fix=f"export FACTORY_REGISTRY={self.registry.replace(PLACEHOLDER, 'YOU')}  # or where you pull images from",
        )


def load_matrix(path: Path, registry: str = "") -> Matrix:
    """Read and check matrix.yaml; `registry` is where images are instead of where the file says."""
    with plainly(path.parent):
        source = read_yaml(path)
    try:
        matrix = Matrix.model_validate(source.data)
    except ValidationError as error:
        raise _explain(source, error.errors(include_url=False)) from None
    matrix._checkout, matrix._registry = path.parent, registry  # noqa: SLF001 - not part of the file
    _check_references(source, matrix)
    return matrix


def _explain(source: YamlFile, details: list[ErrorDetails]) -> FactoryError:
    """Turn the first validation error, in the order of the file, into one of ours."""
    # The validator reports a mistyped key twice, as unknown and as missing; the unknown key is more helpful.
    mistyped = {detail["loc"][:-1] for detail in details if detail["type"] == "extra_forbidden"}
    details = [detail for detail in details if detail["type"] != "missing" or detail["loc"][:-1] not in mistyped]
    first = min(details, key=lambda detail: source.location(detail["loc"]).line or 0)
    path = first["loc"]
    more = f" ({len(details) - 1} more after this one)" if len(details) > 1 else ""
    name, what, why = "bad-matrix", f"{_dotted(path) or 'the file'} is wrong{more}.", f"{in_words(first['msg'])}."
    fix = "Correct the value; docs/schemas/matrix.schema.json describes every key."
    if first["type"] == "extra_forbidden":
        key, keys = str(path[-1]), _known_keys(path[:-1])
        what = f"Unknown key {key!r}{more}."
        why = f"{_dotted(path[:-1]) or 'matrix.yaml'} has no such setting."
        fix = did_you_mean(key, keys) if keys else "Remove it, or check its indentation."
    elif first["type"] == "specifier":
        name = "bad-version-range"
        fix = 'Write a PEP 440 version or range, such as ">=0.26" or ">=0.20,<0.24".'
    return ConfigError(name, what, where=source.location(path), why=why, fix=fix)


def _known_keys(path: tuple[str | int, ...]) -> list[str]:
    kind: Any = Matrix
    for part in path:
        fields = getattr(kind, "model_fields", None)
        kind = fields[part].annotation if fields else get_args(kind)[-1]
        if NoneType in get_args(kind):
            kind = get_args(kind)[0]
    return sorted(getattr(kind, "model_fields", ()))


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))


def _references(matrix: Matrix) -> Iterator[tuple[tuple[str | int, ...], str, Iterable[str], str]]:
    """Yield every reference of the file: where it is, its value, and the known ones of a kind."""
    yield ("defaults", "vllm"), matrix.defaults.vllm, matrix.vllm, "vLLM version"
    yield ("defaults", "arch"), matrix.defaults.arch, matrix.archs, "arch"
    yield ("defaults", "tags"), matrix.defaults.tags or matrix.defaults.vllm, matrix.vllm, "vLLM version"
    for name, arch in matrix.archs.items():
        yield ("archs", name, "base"), arch.base, matrix.bases, "base"
    for name, version in matrix.vllm.items():
        for key in version.compile if isinstance(version.compile, dict) else ():
            yield ("vllm", name, "compile", key), key, matrix.archs, "arch"
    # `serve_on` names an arch, for vLLM; another server; or that server on an arch.
    others = [name for name in TITLES if name != VLLM]
    served_on = [*matrix.archs, *others, *(f"{server}/{arch}" for server in others for arch in matrix.archs)]
    for name, model in matrix.models.items():
        if model.arch:
            yield ("models", name, "arch"), model.arch, matrix.archs, "arch"
        for key in model.serve_on:
            yield ("models", name, "serve_on", key), key, served_on, "arch or server"
    for name in matrix.kept:
        yield ("kept", name), name, matrix.versions, "version"
    for index, entry in enumerate(matrix.leave_out):
        for number, key in enumerate(entry.archs):
            yield ("leave_out", index, "archs", number), key, matrix.archs, "arch"


def _check_references(source: YamlFile, matrix: Matrix) -> None:
    for path, value, defined, what in _references(matrix):
        if value not in defined:
            why = f"{_dotted(path)} refers to something that matrix.yaml does not define."
            raise unknown_name(what, value, defined, source.location(path), why=why)
    if shared := set(matrix.versions) & set(matrix.bases):
        raise ConfigError(
            "bad-matrix",
            f"{min(shared)!r} is both a base and a version.",
            where=source.location(("bases", min(shared))),
            why="Both keep their locks in the folder of that name.",
            fix="Rename the base.",
        )
