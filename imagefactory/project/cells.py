"""Lists cells, the combinations of model, server version, arch and platform that can be built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from itertools import product
from typing import Final, Literal

from packaging.specifiers import SpecifierSet

from imagefactory.project.bases import LeaveOut
from imagefactory.project.matrix import Matrix, Rule
from imagefactory.project.served_model import Drafter
from imagefactory.project.server_versions import (
    TITLES,
    VLLM,
    choice_for,
    server_name,
    version_key,
    version_name,
    version_title,
)
from images.shipped.values import Condition

KernelOrigin = Literal["upstream", "graft", "compiled"]
"""Where vLLM's kernels come from: the published wheel, that wheel with some of its libraries replaced by compiled ones,
or a compile of the whole."""

AUTO: Final = "auto"  # the load format with which the server decides
SPARK: Final = "12.1"  # the compute capability of a DGX Spark


@dataclass(frozen=True, order=True)
class Cell:
    """One image: a model served by a version of a server on an arch, for one platform."""

    model: str
    version: str  # the version's name in targets: 0.32.0 of vLLM, sglang-0.5.21 of SGLang
    arch: str
    platform: str

    def __str__(self) -> str:
        return f"{self.model}@{self.version}/{self.arch}"

    @classmethod
    def of_labels(cls, labels: Mapping[str, object], platform: str) -> Cell:
        """Return the cell that an image's labels name; parts that they do not name are empty."""
        of_server = {server: labels.get(f"imagefactory.{server}") for server in TITLES}
        versions = [version_name(server, str(key)) for server, key in of_server.items() if key]
        model, arch = (str(labels.get(f"imagefactory.{part}", "")) for part in ("model", "arch"))
        return cls(model, versions[0] if versions else "", arch, platform)

    @property
    def labels(self) -> dict[str, str]:
        return {
            "imagefactory.model": self.model,
            f"imagefactory.{self.server}": version_key(self.version),
            "imagefactory.arch": self.arch,
        }

    @property
    def server(self) -> str:
        return server_name(self.version)

    @property
    def runs(self) -> str:
        """What the image runs, as messages call it: vLLM 0.32.0."""
        return version_title(self.version)

    @property
    def machine(self) -> str:
        """The platform without its operating system: arm64 or amd64."""
        return self.platform.removeprefix("linux/")

    @property
    def full_target(self) -> str:
        """The target that names this cell alone, also where an arch has several platforms."""
        return f"{self}/{self.machine}"

    @property
    def slug(self) -> str:
        return f"{self.model_and_version}-{self.arch}-{self.machine}"

    @property
    def model_and_version(self) -> str:
        """The beginning of tags and file names."""
        return f"{self.model}-{'v' if self.server == VLLM else ''}{self.version}"


@dataclass(frozen=True)
class Exclusion:
    """A combination that is not built, and why."""

    cell: Cell
    reason: str


def all_combinations(matrix: Matrix, version: str | None = None, arch: str | None = None) -> Iterator[Cell]:
    """List every combination, or those of a version or arch, in the order of the file, whether it can work or not."""
    versions = [name for name in matrix.versions if version in (None, name)]
    archs = [name for name in matrix.archs if arch in (None, name)]
    for model, of_version, of_arch in product(matrix.models, versions, archs):
        for platform in matrix.archs[of_arch].platforms:
            yield Cell(model, of_version, of_arch, platform)


def buildable(matrix: Matrix, version: str | None = None, arch: str | None = None) -> list[Cell]:
    """List the cells that can be built, or those of a version or arch, which takes a fraction of the time."""
    return [cell for cell in all_combinations(matrix, version, arch) if reason_excluded(matrix, cell) is None]


def exclusions(matrix: Matrix) -> list[Exclusion]:
    reasons = ((cell, reason_excluded(matrix, cell)) for cell in all_combinations(matrix))
    return [Exclusion(cell, reason) for cell, reason in reasons if reason is not None]


def reason_excluded(matrix: Matrix, cell: Cell) -> str | None:
    model, version, arch = matrix.models[cell.model], matrix.versions[cell.version], matrix.archs[cell.arch]
    why = _out_of_range(matrix, cell, cell.model, model.range_of(cell.server))
    if why is None and model.sparks > 1 and arch.capability != SPARK:
        why = f"{cell.model} is described for two DGX Sparks only"
    if why:
        return why
    if arch.distribution != "vllm" and (version.release is None or version.extras):
        return f"{arch.distribution} {'has no extras' if version.extras else 'exists for releases only'}"
    same = first_of_release(matrix, cell.version)
    if same != cell.version and not version.extras and not compiled_distributions(matrix, cell):
        return f"nothing is compiled for {cell.arch}, which makes it the same as {version_title(same)}"
    for rule in matrix.exclude:
        if rule.when.drafter is None and condition_holds(rule.when, matrix, cell):
            return rule.reason
    if model.drafters and model.draft == "required" and not usable_drafters(matrix, cell):
        return drafter_exclusions(matrix, cell)[0][1]
    return None


def default_version(matrix: Matrix, name: str) -> str:
    """Return the version that serves a model if none is named: the default one, else the newest release that can."""
    arch = matrix.models[name].arch or matrix.defaults.arch
    platform = matrix.archs[arch].platforms[0]
    releases = (version for version in reversed(matrix.versions) if matrix.versions[version].release)
    versions = (matrix.defaults.vllm, *releases)
    fitting = (version for version in versions if reason_excluded(matrix, Cell(name, version, arch, platform)) is None)
    return next(fitting, matrix.defaults.vllm)


def preferred_version(matrix: Matrix, name: str, arch: str) -> str:
    """Return the version that short tags prefer: on the model's own arch `defaults.tags`, where it can be built."""
    version, native = default_version(matrix, name), matrix.defaults.tags
    if native is None or version != matrix.defaults.vllm or arch != (matrix.models[name].arch or matrix.defaults.arch):
        return version
    excluded = reason_excluded(matrix, Cell(name, native, arch, matrix.archs[arch].platforms[0]))
    return version if excluded else native


def support_warnings(matrix: Matrix, cells: Iterable[Cell], today: date) -> list[str]:
    """List what is past its day: Debian's support of the bases of cells, with their archs, and versions."""
    archs: dict[str, dict[str, None]] = {}
    versions: dict[str, None] = {}
    for cell in cells:
        archs.setdefault(matrix.archs[cell.arch].base, {})[cell.arch] = None
        versions[cell.version] = None
    warnings = ((base, matrix.bases[base].support_warning(today)) for base in archs)
    past = (name for name in versions if name in matrix.kept and matrix.kept[name].until < today)
    return [
        *(f"{', '.join(archs[base])}: {warning}" for base, warning in warnings if warning),
        *(f"{version_title(name)} was to be kept until {matrix.kept[name].until}" for name in past),
    ]


def versions_without_reason(matrix: Matrix, names: Iterable[str]) -> list[str]:
    """List the releases among versions that a newer one of their server follows, and `kept` and `defaults` omit."""
    named = (name for name, version in matrix.versions.items() if version.release)
    releases = [name for name in named if first_of_release(matrix, name) == name]
    return [
        name
        for name in dict.fromkeys(names)
        if name in releases
        and name not in {*matrix.kept, matrix.defaults.vllm}
        and any(
            server_name(other) == server_name(name) and matrix.versions[other].version > matrix.versions[name].version
            for other in releases
        )
    ]


def known_faults(matrix: Matrix, cell: Cell) -> list[str]:
    return _reasons(matrix.known_faults, matrix, cell)


def merged_changes(matrix: Matrix, cell: Cell) -> list[str]:
    """List what people once built from a pull request and a cell's server has, with the release that brought it."""
    return _reasons(matrix.merged, matrix, cell)


def reason_unlocked(matrix: Matrix, cell: Cell) -> str:
    """Say why a cell may have no lock; empty if the matrix does not say it."""
    return next(iter(_reasons(matrix.unlocked, matrix, cell)), "")


def _reasons(rules: Iterable[Rule], matrix: Matrix, cell: Cell) -> list[str]:
    return [rule.reason for rule in rules if condition_holds(rule.when, matrix, cell)]


def usable_drafters(matrix: Matrix, cell: Cell) -> list[Drafter]:
    refused = [drafter for drafter, _ in drafter_exclusions(matrix, cell)]
    return [drafter for drafter in matrix.models[cell.model].drafters if drafter not in refused]


def drafter_exclusions(matrix: Matrix, cell: Cell) -> list[tuple[Drafter, str]]:
    excluded: list[tuple[Drafter, str]] = []
    for drafter in matrix.models[cell.model].drafters:
        reasons = (
            rule.reason
            for rule in matrix.exclude
            if rule.when.drafter is not None
            and matches(rule.when.drafter, drafter.method)
            and condition_holds(rule.when, matrix, cell)
        )
        specifier = drafter.range_of(cell.server)
        if why := next(reasons, None) or _out_of_range(matrix, cell, drafter.repo, specifier):
            excluded.append((drafter, why))
    return excluded


def condition_holds(condition: Condition, matrix: Matrix, cell: Cell) -> bool:
    """Whether every part of a condition except its drafter holds for a cell."""
    globs = [
        (condition.model, cell.model),
        (condition.server, cell.server),
        (condition.version, cell.version),
        (condition.arch, cell.arch),
        (condition.weights, matrix.models[cell.model].weights),
    ]
    if not all(matches(pattern, value) for pattern, value in globs if pattern is not None):
        return False
    for server in TITLES:
        specifier = getattr(condition, server)
        if specifier is not None and not (server == cell.server and matrix.versions[cell.version].within(specifier)):
            return False
    if condition.capability is not None:
        capability = matrix.archs[cell.arch].capability
        return capability is not None and SpecifierSet(condition.capability).contains(capability)
    return True


def called_modules(matrix: Matrix, cell: Cell) -> dict[str, str]:
    """Return the modules of FlashInfer that a cell's server calls, with what makes each of them."""
    return {
        name: module.make
        for name, module in matrix.flashinfer.items()
        if any(condition_holds(condition, matrix, cell) for condition in module.called_by)
    }


def loader_of(matrix: Matrix, cell: Cell) -> str | None:
    """Return how a cell's image loads weights; None if the server decides."""
    rules = (rule for rule in matrix.loaders if condition_holds(rule.when, matrix, cell))
    chosen = next((rule.load_format for rule in rules), AUTO)
    return None if chosen == AUTO else chosen


def modules_called_on(matrix: Matrix, version: str, arch: str) -> tuple[str, ...]:
    called = {name for cell in all_combinations(matrix, version, arch) for name in called_modules(matrix, cell)}
    return tuple(name for name in matrix.flashinfer if name in called)


def intended_kernels(matrix: Matrix, cell: Cell) -> KernelOrigin:
    """Return where a cell's vLLM kernels have to come from, according to the matrix."""
    if "vllm" not in compiled_distributions(matrix, cell):
        return "upstream"
    return "graft" if choice_for(matrix.versions[cell.version].compile, cell.arch)[0] == "graft" else "compiled"


def compiled_distributions(matrix: Matrix, cell: Cell) -> tuple[str, ...]:
    version = matrix.versions[cell.version]
    if matrix.archs[cell.arch].distribution != "vllm":
        return ()
    kind, named = choice_for(version.compile, cell.arch)
    vllm = ["vllm"] if version.git is not None or kind != "published" else []
    return tuple(dict.fromkeys([*vllm, *named]))


def leave_out_of(matrix: Matrix, cell: Cell) -> list[LeaveOut]:
    """List what a cell's image is to leave out; the model does not matter."""
    version = matrix.versions[cell.version].version
    return [entry for entry in matrix.leave_out if entry.applies(cell.arch, cell.server, version)]


def first_of_release(matrix: Matrix, name: str) -> str:
    """Return the first version of the same release, whose sources and compilers it shares."""
    release = matrix.versions[name].release
    if release is None:
        return name
    same_server = (key for key in matrix.versions if server_name(key) == server_name(name))
    return next(key for key in same_server if matrix.versions[key].release == release)


def _out_of_range(matrix: Matrix, cell: Cell, what: str, specifier: str | None) -> str | None:
    """Return why a cell's version does not fit a model or a drafter, which is None if it does."""
    title = TITLES[cell.server]
    if specifier is None:
        return f"{what} is not described for {title}"
    return None if matrix.versions[cell.version].within(specifier) else f"{what} needs {title} {specifier}"


def matches(pattern: str, value: str) -> bool:
    """Whether a glob, which `!` turns around, matches a name."""
    if pattern.startswith("!"):
        return not fnmatchcase(value, pattern[1:])
    return fnmatchcase(value, pattern)
