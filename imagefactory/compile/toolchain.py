"""Plans and provides toolchains: images of Debian with its compilers and the CUDA compiler from wheels.

To the rest of the factory a toolchain is a base and an arch that serves no model, so the code that locks, plans and
builds images does the same for toolchains.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from imagefactory.assemble.assemble import BuildRun, make_layers
from imagefactory.assemble.engines.docker import daemon
from imagefactory.assemble.watch import Watcher
from imagefactory.compile.settings import FILE, CompileSettings, load_settings
from imagefactory.errors import ConfigError, unknown_name
from imagefactory.lock.drift import (
    Expected,
    base_made_from,
    check_locks,
    expected_locks,
    version_checksum,
    wheels_made_from,
)
from imagefactory.lock.lookups import lock_archive
from imagefactory.lock.making import LockResult, make_base_lock
from imagefactory.lock.wheel_locks import WheelRequest, lock_wheels
from imagefactory.mods.source_files import ReleaseSource
from imagefactory.oci.format import VENV
from imagefactory.oci.layout import write_layout
from imagefactory.plan.make import base_layer, wheel_layers
from imagefactory.plan.plan import Environment, ImageConfig, Layer, Plan, ToolkitLayer, make_image
from imagefactory.plan.serve.image_paths import CUDA_HOME
from imagefactory.project.cells import Cell, first_of_release
from imagefactory.project.locks.files import BaseLock, Lock, LockedSource, MadeFrom, WheelLock
from imagefactory.project.matrix import Arch, Matrix, Platform
from imagefactory.project.project import Project
from imagefactory.store.digests import checksum
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes
from imagefactory.store.progress import Say

IMAGE = "imagefactory/toolchain"
MODEL = "toolchain"
_BOTH: tuple[Platform, ...] = ("linux/amd64", "linux/arm64")


@dataclass(frozen=True)
class CompileProject(Project):
    """A checkout whose matrix has an additional base and arch for the toolchain."""

    @cached_property
    def settings(self) -> CompileSettings:
        return load_settings(self.root)

    @cached_property
    def matrix(self) -> Matrix:
        plain = Project(self.root, self.store).matrix
        arch = Arch(
            platforms=list(_BOTH),
            base=self.toolchain_name,
            also=self.settings.requirements,
            without=self.settings.wheels.without,
        )
        bases = plain.bases | {self.toolchain_name: self.settings.toolchain}
        archs = plain.archs | {self.toolchain_name: arch}
        return plain.model_copy(update={"bases": bases, "archs": archs, "leave_out": []})

    @property
    def toolchain_name(self) -> str:
        """Its name among bases and archs, and in the folder of locks."""
        return f"toolchain-{self.settings.toolchain.debian}"

    def cell(self, vllm: str, platform: str) -> Cell:
        """Return the cell that stands for the toolchain of a vLLM version; versions of one release share it."""
        return Cell(MODEL, first_of_release(self.matrix, vllm), self.toolchain_name, platform)


def toolchain_cells(project: CompileProject, vllm: str) -> list[Cell]:
    return [project.cell(vllm, platform) for platform in _BOTH]


def toolchain_plan(project: CompileProject, cell: Cell, *, bare: bool = False) -> Plan:
    """Plan the image of a toolchain; a bare one is its Debian alone, with Git, patch and Python."""
    wheels, base = project.wheel_lock(cell), project.base_lock(cell)
    layers: tuple[Layer, ...] = (base_layer(project.matrix, cell, base),)
    if not bare:
        environment = Environment(python=wheels.python, venv=VENV)
        layers += (*wheel_layers(project.matrix, wheels), ToolkitLayer.of("toolkit", "cuda", (), environment))
    config = ImageConfig(
        env={
            "CUDA_HOME": f"/{CUDA_HOME}",
            "PATH": f"/{VENV}/bin:/{CUDA_HOME}/bin:/usr/local/bin:/usr/bin:/bin",
            "VIRTUAL_ENV": f"/{VENV}",
        },
        entrypoint=(),
        command=("/bin/bash",),
        labels={},
    )
    decides = {"layers": [layer.key for layer in layers], "config": config.model_dump(mode="json")}
    return Plan(
        target=str(cell),
        **asdict(cell),
        kernels=wheels.kernels,
        key=checksum(decides),
        layers=layers,
        config=config,
    )


def image_name(plan: Plan) -> str:
    return f"{IMAGE}:{plan.arch.removeprefix('toolchain-')}-{plan.key[:16]}"


def identity(plan: Plan) -> str:
    """Return a hash of the files of a toolchain, however they are packed into layers."""
    inputs = [[entry.name, entry.sha256] for layer in plan.layers for entry in layer.inputs]
    return f"sha256:{checksum({'inputs': sorted(inputs), 'env': plan.config.env})}"


def provide(project: CompileProject, plan: Plan, watch: Watcher) -> str:
    """Load the image of a toolchain into the Docker daemon, which must run its platform, and return its name.

    The name is derived from the content, so an image that is there needs none of its layers here.
    """
    name = image_name(plan)
    daemon.refuse_foreign(daemon.ask(), plan.platform)
    if daemon.image_id(name) is None:
        blobs = make_layers(BuildRun(project, [plan], watch))
        image = make_image(plan, [blobs[layer.key] for layer in plan.layers])
        folder = project.root / "build" / "toolchains"
        folder.mkdir(parents=True, exist_ok=True)
        # Another process may do the same.
        with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as scratch:
            daemon.load(write_layout(image, plan.arch, project.store, Path(scratch, "layout")), name)
    return name


def locked_toolchains(project: CompileProject) -> Iterator[Cell]:
    for vllm, version in project.matrix.vllm.items():
        if version.release is not None:
            yield from (cell for cell in toolchain_cells(project, vllm) if project.wheel_lock_path(cell).exists())


FLASHINFER = "flashinfer-python"


class FlashInferLock(Lock):
    """The FlashInfer sources that one vLLM version is compiled with."""

    header: ClassVar[str] = "The FlashInfer sources that one vLLM version is compiled with."
    file: ClassVar[str] = "{}/flashinfer.toml"
    named_by: ClassVar[tuple[str, ...]] = ("vllm",)

    sources: tuple[LockedSource, ...] = ()

    @property
    def vllm(self) -> str:
        [part] = self.made_from
        return part.removeprefix("vllm.")


def make_toolchain_locks(
    project: CompileProject, versions: Sequence[str], *, upgrade: bool = False, say: Say
) -> Iterator[LockResult]:
    """Pin the toolchains of vLLM versions; locks that still match matrix.yaml and compile.yaml are left alone."""
    for name in versions:
        version = project.matrix.vllm.get(name)
        if version is None:
            raise unknown_name("vLLM version", name, project.matrix.vllm, "the --toolchain option")
        vllm = first_of_release(project.matrix, name)
        sdist = locked_vllm(project, version.release or project.settings.nearest(version))
        indexes = Indexes(IndexConfig.from_environment())
        source = ReleaseSource(sdist, indexes, project.store)
        # First, since its build requirements are among those of the compilers.
        yield _lock_flashinfer(project, vllm, source, indexes, say)
        flashinfer = ReleaseSource(locked_flashinfer(project, vllm), indexes, project.store)
        requires = [
            *build_requirements(source.read("pyproject.toml"), sdist.file),
            *build_requirements(flashinfer.read("pyproject.toml"), f"FlashInfer for vLLM {vllm}"),
        ]
        for cell in toolchain_cells(project, vllm):
            yield make_base_lock(project, cell, ["all"] if upgrade else [], say)
            yield _lock_compilers(project, cell, requires, upgrade=upgrade, say=say)


def locked_vllm(project: CompileProject, release: str) -> LockedSource:
    sdist = project.source_lock.find(release, ".tar.gz")
    if sdist is None:
        raise ConfigError(
            "bad-compile-data",
            f"The sources of vLLM {release} are not locked.",
            where="locks/sources.toml",
            why="They are what is compiled, and say which torch and FlashInfer to compile with.",
            fix="Run `./inv lock`.",
        )
    return sdist


def locked_flashinfer(project: CompileProject, vllm: str) -> LockedSource:
    named = first_of_release(project.matrix, vllm)
    [sdist] = FlashInferLock.read(FlashInferLock.path(project.locks, named)).sources
    return sdist


def expected_toolchain_locks(project: CompileProject) -> list[Expected]:
    matrix, expected = project.matrix, []
    for cell in locked_toolchains(project):
        flashinfer = FlashInferLock.path(project.locks, cell.version)
        expected += [
            Expected(project.base_lock_path(cell), BaseLock, base_made_from(matrix, cell)),
            Expected(project.wheel_lock_path(cell), WheelLock, wheels_made_from(matrix, cell)),
            Expected(flashinfer, FlashInferLock, _flashinfer_made_from(project, cell.version)),
        ]
    return expected


def check_all_locks(project: Project) -> list[Path]:
    """Check every lock against matrix.yaml, and those of the compilers where the checkout has a compile.yaml."""
    expected = expected_locks(project)
    if (project.root / FILE).exists():
        expected += expected_toolchain_locks(CompileProject(project.root, project.store))
    return check_locks(project, expected)


def build_requirements(pyproject: str | None, where: str) -> list[str]:
    try:
        requires = tomllib.loads(pyproject or "")["build-system"]["requires"]
        return [str(Requirement(text)) for text in requires]
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "bad-compile-data",
            "The build requirements cannot be read.",
            where=where,
            why=f"{type(error).__name__}: {error}",
            fix="Choose another release.",
        ) from None


def pinned(name: str, requirements: Sequence[str], where: str) -> str:
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        exact = re.fullmatch(r"==\s*([^,*]+)", str(requirement.specifier))
        if canonicalize_name(requirement.name) == name and exact:
            return exact[1]
    raise ConfigError(
        "bad-compile-data",
        f"No version of {name} is pinned.",
        where=where,
        why="vLLM must pin the torch and the FlashInfer that it is compiled with.",
        fix="Choose another release.",
    )


def _flashinfer_made_from(project: CompileProject, vllm: str) -> MadeFrom:
    return {f"vllm.{vllm}": version_checksum(project.matrix.vllm[vllm])}


def _lock_flashinfer(
    project: CompileProject, vllm: str, source: ReleaseSource, indexes: Indexes, say: Say
) -> LockResult:
    path = FlashInferLock.path(project.locks, vllm)
    made_from = _flashinfer_made_from(project, vllm)
    if path.exists() and FlashInferLock.read(path).made_from == made_from:
        return LockResult(path, changed=False)
    version = flashinfer_version(source.read("requirements/cuda.txt"), f"vLLM {vllm}, requirements/cuda.txt")
    say(f"Looking up the sources of FlashInfer {version}")
    why = "It has to be compiled from source."
    sdist = lock_archive("sdist", FLASHINFER, version, indexes, why)
    lock = FlashInferLock(made_from=made_from, sources=(sdist,))
    return LockResult(path, changed=lock.write(path))


def flashinfer_version(requirements: str | None, where: str) -> str:
    lines = [line.partition("#")[0].strip() for line in (requirements or "").splitlines()]
    return pinned(FLASHINFER, [line for line in lines if line and not line.startswith("-")], where)


def _lock_compilers(
    project: CompileProject, cell: Cell, requires: Sequence[str], *, upgrade: bool, say: Say
) -> LockResult:
    path = project.wheel_lock_path(cell)
    made_from = wheels_made_from(project.matrix, cell)
    if path.exists() and not upgrade and WheelLock.read(path).made_from == made_from:
        return LockResult(path, changed=False)
    say(f"Resolving the compilers of vLLM {cell.version} in {cell.arch} ({cell.platform})")
    arch = project.matrix.archs[cell.arch]
    others = [text for text in requires if canonicalize_name(Requirement(text).name) != "torch"]
    request = WheelRequest(
        cell=cell,
        distribution="torch",
        release=pinned("torch", requires, f"vLLM {cell.version}, pyproject.toml"),
        arch=arch.model_copy(update={"also": [*arch.also, *others]}),
        base=project.matrix.bases[arch.base],
        conflicts=project.matrix.conflicts,
        made_from=made_from,
    )
    lock = lock_wheels(request, config=IndexConfig.from_environment(), store=project.store, say=say)
    return LockResult(path, changed=lock.write(path))
