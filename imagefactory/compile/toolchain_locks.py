"""Locking toolchains: the packages and wheels of the compilers, and the FlashInfer that a vLLM release asks for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from imagefactory.compile.settings import FILE
from imagefactory.compile.toolchain import CompileProject, locked_toolchains, toolchain_cells
from imagefactory.environment.index_config import IndexConfig
from imagefactory.environment.progress import Say
from imagefactory.errors import did_you_mean
from imagefactory.errors.kernels import CompileDataError
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.locks.files import LockedSource, MadeFrom, SourceLock, WheelLock
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell, arch_of
from imagefactory.mods.source_files import ReleaseSource
from imagefactory.resolve.locking import (
    LockResult,
    base_made_from,
    check_locks,
    make_base_lock,
    version_facts,
    wheels_made_from,
)
from imagefactory.resolve.release_archives import lock_sdist
from imagefactory.resolve.wheel_locks import WheelRequest, lock_wheels
from imagefactory.store.digests import checksum
from imagefactory.store.indexes import Indexes

FLASHINFER = "flashinfer-python"


def make_toolchain_locks(
    project: CompileProject, versions: Sequence[str], *, upgrade: bool = False, say: Say
) -> Iterator[LockResult]:
    """Pin what vLLM versions are compiled with; what already answers matrix and compile.yaml stays as it is."""
    for vllm in versions:
        release = _release(project, vllm)
        sdist = project.source_lock.find(release, ".tar.gz")
        if sdist is None:
            raise CompileDataError(
                f"The sources of vLLM {release} are not locked.",
                where="locks/sources.toml",
                why="They say which torch and which FlashInfer they are compiled with.",
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


def flashinfer_lock_path(project: CompileProject, vllm: str) -> Path:
    """Say where the FlashInfer of a vLLM version is locked."""
    return project.locks / vllm / "flashinfer.toml"


def locked_flashinfer(project: CompileProject, vllm: str) -> LockedSource:
    """Give the locked sdist of FlashInfer for a vLLM version."""
    [sdist] = SourceLock.read(flashinfer_lock_path(project, vllm)).sources
    return sdist


def expected_toolchain_locks(project: CompileProject) -> dict[Path, MadeFrom]:
    """Say what the locks of toolchains have to answer, for those that are there."""
    expected: dict[Path, MadeFrom] = {}
    for cell in locked_toolchains(project):
        expected[project.base_lock_path(cell)] = base_made_from(project.matrix, cell)
        expected[project.wheel_lock_path(cell)] = wheels_made_from(project.matrix, cell)
        expected[flashinfer_lock_path(project, cell.vllm)] = _flashinfer_made_from(project, cell.vllm)
    return expected


def check_all_locks(project: Project) -> list[Path]:
    """Compare every lock with the matrix, and those of compilers with compile.yaml where the checkout has one."""
    compiles = (project.root / FILE).exists()
    also = expected_toolchain_locks(CompileProject(project.root, project.store)) if compiles else {}
    return check_locks(project, also)


def build_requirements(pyproject: str | None, where: str) -> list[str]:
    """Read what a source's build backend asks for, as its pyproject.toml says."""
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
    """Find the one version that requirements allow of something."""
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
        why="vLLM is compiled against one torch and with one FlashInfer, and says which.",
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
    path = flashinfer_lock_path(project, vllm)
    made_from = _flashinfer_made_from(project, vllm)
    if path.exists() and SourceLock.read(path).made_from == made_from:
        return LockResult(path, changed=False)
    version = flashinfer_version(source.read("requirements/cuda.txt"), f"vLLM {vllm}, requirements/cuda.txt")
    say(f"Looking up the sources of FlashInfer {version}")
    lock = SourceLock(made_from=made_from, sources=(lock_sdist(FLASHINFER, version, indexes),))
    return LockResult(path, changed=lock.write(path))


def flashinfer_version(requirements: str | None, where: str) -> str:
    """Read which FlashInfer a vLLM release asks for."""
    lines = [line.partition("#")[0].strip() for line in (requirements or "").splitlines()]
    return pinned(FLASHINFER, [line for line in lines if line and not line.startswith("-")], where)


def _lock_compilers(
    project: CompileProject, cell: Cell, requires: Sequence[str], *, upgrade: bool, say: Say
) -> LockResult:
    path = project.wheel_lock_path(cell)
    made_from = wheels_made_from(project.matrix, cell)
    if path.exists() and not upgrade and WheelLock.read(path).made_from == made_from:
        return LockResult(path, changed=False)
    say(f"Resolving the compilers of vLLM {cell.vllm} in {cell.arch} ({cell.platform})")
    arch = arch_of(project.matrix, cell)
    others = [text for text in requires if canonicalize_name(Requirement(text).name) != "torch"]
    request = WheelRequest(
        vllm=cell.vllm,
        release=pinned("torch", requires, f"vLLM {cell.vllm}, pyproject.toml"),
        arch_name=cell.arch,
        arch=arch.model_copy(update={"distribution": "torch", "also": [*arch.also, *others]}),
        base=project.matrix.bases[arch.base],
        platform=cell.platform,
        kernels="upstream",
        conflicts=project.matrix.conflicts,
        made_from=made_from,
    )
    lock = lock_wheels(request, config=IndexConfig.from_environment(), store=project.store, say=say)
    return LockResult(path, changed=lock.write(path))
