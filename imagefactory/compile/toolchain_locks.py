"""Locks toolchains: the packages and wheels of the compilers, and the FlashInfer that a vLLM release requires."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from imagefactory.compile.settings import FILE
from imagefactory.compile.toolchain import CompileProject, locked_toolchains, toolchain_cells
from imagefactory.environment.index_config import IndexConfig
from imagefactory.environment.progress import Say
from imagefactory.errors import did_you_mean
from imagefactory.errors.kernels import CompileDataError
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.locks.files import BaseLock, LockedSource, WheelLock
from imagefactory.locks.lock import Lock, MadeFrom
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell, arch_of, first_of_release
from imagefactory.mods.source_files import ReleaseSource
from imagefactory.resolve.drift import (
    Expected,
    base_made_from,
    check_locks,
    expected_locks,
    version_facts,
    wheels_made_from,
)
from imagefactory.resolve.making import LockResult, make_base_lock
from imagefactory.resolve.release_archives import lock_sdist
from imagefactory.resolve.wheel_locks import WheelRequest, lock_wheels
from imagefactory.store.digests import checksum
from imagefactory.store.indexes import Indexes

FLASHINFER = "flashinfer-python"


class FlashInferLock(Lock):
    """The FlashInfer sources that one vLLM version is compiled with."""

    header: ClassVar[str] = "The FlashInfer sources that one vLLM version is compiled with."

    sources: tuple[LockedSource, ...] = ()

    @classmethod
    def path(cls, locks: Path, vllm: str) -> Path:
        """Return where the FlashInfer of a vLLM version is locked."""
        return locks / vllm / "flashinfer.toml"

    def home(self, locks: Path) -> Path:
        """Return the path where a lock with this content belongs."""
        [part] = self.made_from
        return self.path(locks, part.removeprefix("vllm."))


def make_toolchain_locks(
    project: CompileProject, versions: Sequence[str], *, upgrade: bool = False, say: Say
) -> Iterator[LockResult]:
    """Pin the toolchains of vLLM versions; locks that still match matrix.yaml and compile.yaml are left alone."""
    for name in versions:
        release = _release(project, name)
        vllm = first_of_release(project.matrix, name)
        sdist = project.source_lock.find(release, ".tar.gz")
        if sdist is None:
            raise CompileDataError(
                f"The sources of vLLM {release} are not locked.",
                where="locks/sources.toml",
                why="They specify which torch and FlashInfer to compile with.",
                fix="Run `invoke lock` first.",
            )
        indexes = Indexes(IndexConfig.from_environment())
        source = ReleaseSource(sdist, indexes, project.store)
        result = _lock_flashinfer(project, vllm, source, indexes, say)
        yield result
        flashinfer = ReleaseSource(locked_flashinfer(project, vllm), indexes, project.store)
        requires = [
            *build_requirements(source.read("pyproject.toml"), sdist.file),
            *build_requirements(flashinfer.read("pyproject.toml"), f"FlashInfer for vLLM {vllm}"),
        ]
        for cell in toolchain_cells(project, vllm):
            yield make_base_lock(project, cell, ["all"] if upgrade else [], say)
            yield _lock_compilers(project, cell, requires, upgrade=upgrade, say=say)


def locked_flashinfer(project: CompileProject, vllm: str) -> LockedSource:
    """Return the locked sdist of FlashInfer for a vLLM version."""
    named = first_of_release(project.matrix, vllm)
    [sdist] = FlashInferLock.read(FlashInferLock.path(project.locks, named)).sources
    return sdist


def expected_toolchain_locks(project: CompileProject) -> list[Expected]:
    """List the locks of the toolchains that have been locked."""
    matrix = project.matrix
    return [
        expected
        for cell in locked_toolchains(project)
        for expected in (
            Expected(project.base_lock_path(cell), BaseLock, base_made_from(matrix, cell)),
            Expected(project.wheel_lock_path(cell), WheelLock, wheels_made_from(matrix, cell)),
            Expected(
                FlashInferLock.path(project.locks, cell.version),
                FlashInferLock,
                _flashinfer_made_from(project, cell.version),
            ),
        )
    ]


def check_all_locks(project: Project) -> list[Path]:
    """Check every lock against matrix.yaml, and those of the compilers where the checkout has a compile.yaml."""
    expected = expected_locks(project)
    if (project.root / FILE).exists():
        expected += expected_toolchain_locks(CompileProject(project.root, project.store))
    return check_locks(project, expected)


def build_requirements(pyproject: str | None, where: str) -> list[str]:
    """Read the build requirements from a pyproject.toml."""
    try:
        found = tomllib.loads(pyproject or "")["build-system"]["requires"]
        return [str(Requirement(text)) for text in found]
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise CompileDataError(
            "The build requirements cannot be read.",
            where=where,
            why=f"{type(error).__name__}: {error}",
            fix="Choose another release.",
        ) from None


def pinned(name: str, requirements: Sequence[str], where: str) -> str:
    """Return the version that requirements pin a package to."""
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        exact = re.fullmatch(r"==\s*([^,*]+)", str(requirement.specifier))
        if canonicalize_name(requirement.name) == name and exact:
            return exact[1]
    raise CompileDataError(
        f"No version of {name} is pinned.",
        where=where,
        why="vLLM must pin the torch and the FlashInfer that it is compiled with.",
        fix="Choose another release.",
    )


def _release(project: CompileProject, vllm: str) -> str:
    version = project.matrix.vllm.get(vllm)
    if version is None:
        raise UnknownNameError(
            f"Unknown vLLM version {vllm!r}.",
            where="the --toolchain option",
            why="matrix.yaml has no vLLM version of that name.",
            fix=did_you_mean(vllm, project.matrix.vllm).capitalize(),
        )
    return version.release or project.settings.nearest(version)


def _flashinfer_made_from(project: CompileProject, vllm: str) -> MadeFrom:
    return {f"vllm.{vllm}": checksum(version_facts(project.matrix.vllm[vllm]))}


def _lock_flashinfer(
    project: CompileProject, vllm: str, source: ReleaseSource, indexes: Indexes, say: Say
) -> LockResult:
    path = FlashInferLock.path(project.locks, vllm)
    made_from = _flashinfer_made_from(project, vllm)
    if path.exists() and FlashInferLock.read(path).made_from == made_from:
        return LockResult(path, changed=False)
    version = flashinfer_version(source.read("requirements/cuda.txt"), f"vLLM {vllm}, requirements/cuda.txt")
    say(f"Looking up the sources of FlashInfer {version}")
    lock = FlashInferLock(made_from=made_from, sources=(lock_sdist(FLASHINFER, version, indexes),))
    return LockResult(path, changed=lock.write(path))


def flashinfer_version(requirements: str | None, where: str) -> str:
    """Return the FlashInfer version that a vLLM release requires."""
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
    arch = arch_of(project.matrix, cell)
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
