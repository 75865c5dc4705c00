"""Making and checking locks: which ones a set of cells needs, whether they still answer the matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefactory.environment.index_config import IndexConfig
from imagefactory.environment.progress import Say
from imagefactory.errors import did_you_mean
from imagefactory.errors.locks import LockDriftError
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.locks.files import (
    BaseLock,
    KernelLock,
    LockedWheel,
    MadeFrom,
    ModelLock,
    SourceLock,
    ToolLock,
    WheelKernels,
    WheelLock,
    base_lock_path,
    kernel_lock_path,
    licence_lock_path,
    model_lock_path,
    source_lock_path,
    tool_lock_path,
    wheel_lock_path,
)
from imagefactory.locks.kernels import audited_wheels
from imagefactory.locks.project import Project, locked_cells
from imagefactory.matrix.cells import (
    VERSION_NEEDS,
    Cell,
    arch_of,
    buildable,
    compiled_distributions,
    intended_kernels,
)
from imagefactory.matrix.matrix import Matrix, VllmVersion
from imagefactory.resolve.base_locks import lock_base
from imagefactory.resolve.mirrors import DebianMirrors
from imagefactory.resolve.model_revisions import lock_revision
from imagefactory.resolve.release_archives import lock_sources, lock_tool
from imagefactory.resolve.wheel_locks import WheelRequest, lock_wheels
from imagefactory.resolve.wheelhouse.adopt import choose_compiled, refuse_unfit_kernels, refuse_unknown
from imagefactory.resolve.wheelhouse.keep import KeptWheel
from imagefactory.store.digests import checksum
from imagefactory.store.indexes import Indexes

UPGRADE_ALL = "all"


@dataclass(frozen=True)
class LockResult:
    """A lock that was looked at, and what became of it."""

    path: Path
    changed: bool


def make_locks(
    project: Project,
    cells: Sequence[Cell],
    *,
    upgrade: Sequence[str] = (),
    wheels: Sequence[str] = (),
    models: bool = False,
    say: Say,
) -> Iterator[LockResult]:
    """Make the locks that cells need; those that already answer the matrix stay as they are.

    Args:
        project: the checkout.
        cells: what the locks are for.
        upgrade: packages to take the newest version of.
        wheels: keys, or their beginnings, of the compiled wheels to adopt where several would do.
        models: also look up model revisions.
        say: hears about progress.
    """
    _check_upgrade_names(project, cells, upgrade)
    refuse_unknown(project, wheels)
    bases = {(project.matrix.archs[cell.arch].base, cell.platform): cell for cell in cells}
    for cell in bases.values():
        yield make_base_lock(project, cell, upgrade, say)
    locks = {(cell.vllm, cell.arch, cell.platform): cell for cell in cells}
    for cell in locks.values():
        yield _make_wheel_lock(project, cell, upgrade, wheels, say)
    yield _make_kernel_lock(project, say)
    yield _make_source_lock(project, say)
    yield _make_tool_lock(project, say)
    yield _make_model_lock(project, look_up=models, say=say)


def check_locks(project: Project, also: Mapping[Path, MadeFrom]) -> list[Path]:
    """Compare every lock with the matrix; any disagreement is an error that says which and why.

    `also` lists further locks that belong to the checkout, with what they have to answer: those of compilers.
    """
    matrix = project.matrix
    expected: dict[Path, MadeFrom] = {
        model_lock_path(project.locks): models_made_from(matrix),
        source_lock_path(project.locks): sources_made_from(matrix),
        tool_lock_path(project.locks): tools_made_from(matrix),
        kernel_lock_path(project.locks): {},
    }
    for cell in buildable(matrix):
        expected[project.base_lock_path(cell)] = base_made_from(matrix, cell)
        expected[project.wheel_lock_path(cell)] = wheels_made_from(matrix, cell)
    expected |= also
    # What layers come out as, and under which licences files stand, answers nothing in the matrix.
    records = {project.known_layers, licence_lock_path(project.locks)}
    present = {*project.locks.glob("**/*.toml")} - records
    needed = {project.base_lock_path(cell) for cell in locked_cells(project)} | {
        model_lock_path(project.locks),
        source_lock_path(project.locks),
        tool_lock_path(project.locks),
        kernel_lock_path(project.locks),
    }
    drifts: list[tuple[Path, str]] = []
    for path in sorted(present | needed):
        relative = path.relative_to(project.root)
        if path not in expected:
            drifts.append((relative, "locks something that matrix.yaml no longer builds"))
        elif not path.exists():
            drifts.append((relative, "is missing"))
        else:
            drifts += [(relative, what) for what in _disagreements(project, path, expected[path])]
    if drifts:
        raise LockDriftError(
            f"{len(drifts)} disagreement{'s' if len(drifts) > 1 else ''} between matrix.yaml and the locks.",
            where=", ".join(dict.fromkeys(str(path) for path, _ in drifts)),
            why="; ".join(f"{path}: {what}" for path, what in drifts),
            fix="Run `invoke lock` and commit the result; delete locks that are no longer needed.",
        )
    return sorted(present)


def wheels_made_from(matrix: Matrix, cell: Cell) -> MadeFrom:
    """Checksum the parts of the matrix that decide a wheel lock."""
    arch = matrix.archs[cell.arch]
    base = matrix.bases[arch.base]
    return {
        f"vllm.{cell.vllm}": checksum(version_facts(matrix.vllm[cell.vllm])),
        f"archs.{cell.arch}": checksum(
            arch.model_dump(
                mode="json", include={"distribution", "indexes", "local_versions", "also", "without", "base"}
            )
        ),
        f"bases.{arch.base}": checksum(base.model_dump(mode="json", include={"python", "glibc"})),
        "conflicts": checksum([conflict.model_dump(mode="json") for conflict in matrix.conflicts]),
    }


def version_facts(version: VllmVersion) -> dict[str, object]:
    """What a version is; a need that it does not have is left out, as before there was such a thing."""
    facts = version.model_dump(mode="json")
    return {name: value for name, value in facts.items() if name not in VERSION_NEEDS or value}


def base_made_from(matrix: Matrix, cell: Cell) -> MadeFrom:
    """Checksum the parts of the matrix that decide a base lock."""
    name = matrix.archs[cell.arch].base
    base = matrix.bases[name].model_dump(mode="json", include={"debian", "packages"})
    return {f"bases.{name}": checksum(base)}


def models_made_from(matrix: Matrix) -> MadeFrom:
    """Checksum what each model is: its repository, its vLLM range, its drafters."""
    identity = {"repo", "generated", "vllm", "weights", "drafters", "draft"}
    return {
        f"models.{name}": checksum(model.model_dump(mode="json", include=identity))
        for name, model in matrix.models.items()
    }


def sources_made_from(matrix: Matrix) -> MadeFrom:
    """Checksum which releases the matrix has."""
    return {
        f"vllm.{name}": checksum(version.release)
        for name, version in matrix.vllm.items()
        if version.release is not None
    }


def tools_made_from(matrix: Matrix) -> MadeFrom:
    """Checksum which programs the factory runs."""
    return {f"tools.{name}": checksum(tool.model_dump(mode="json")) for name, tool in matrix.tools.items()}


def _make_wheel_lock(
    project: Project, cell: Cell, upgrade: Sequence[str], wheels: Sequence[str], say: Say
) -> LockResult:
    matrix, path = project.matrix, project.wheel_lock_path(cell)
    version, arch = matrix.vllm[cell.vllm], matrix.archs[cell.arch]
    old = WheelLock.read(path) if path.exists() else None
    made_from = wheels_made_from(matrix, cell)
    names = {wheel.name for wheel in old.wheels} if old else set()
    upgrading = UPGRADE_ALL in upgrade or bool(names & set(upgrade)) or bool(wheels)
    if old and old.made_from == made_from and not upgrading:
        return LockResult(path, changed=False)
    say(f"Resolving vLLM {cell.vllm} for {cell.arch} ({cell.platform})")
    request = WheelRequest(
        vllm=cell.vllm,
        release=str(version.version),
        arch_name=cell.arch,
        arch=arch_of(matrix, cell),
        base=matrix.bases[arch.base],
        platform=cell.platform,
        kernels=intended_kernels(matrix, cell),
        conflicts=matrix.conflicts,
        made_from=made_from,
        compiled=compiled_distributions(matrix, cell),
    )
    keep = [] if old is None or UPGRADE_ALL in upgrade else [w for w in old.wheels if w.name not in upgrade]
    locked = {wheel.name: wheel.compiled for wheel in keep if wheel.compiled}

    def adopt(name: str, version: str) -> KeptWheel:
        return choose_compiled(project, cell, name, version, asked=wheels, locked=locked.get(name), say=say)

    lock = lock_wheels(
        request, config=IndexConfig.from_environment(), store=project.store, adopt=adopt, keep=keep, say=say
    )
    refuse_unfit_kernels(project, cell, lock)
    return LockResult(path, changed=lock.write(path))


def _make_kernel_lock(project: Project, say: Say) -> LockResult:
    """Look into the kernels of locked wheels that nobody has looked into yet; forget those of unlocked ones."""
    path = kernel_lock_path(project.locks)
    old = KernelLock.read(path) if path.exists() else KernelLock(made_from={})
    found: dict[str, WheelKernels] = {}
    for wheel in _audited(project):
        known = found.get(wheel.sha256) or old.find(wheel.sha256)
        if known is None:
            from imagefactory.resolve.audit.auditing import look_into  # noqa: PLC0415 - mostly there is nothing to look into

            say(f"Looking into the kernels of {wheel.file}")
            known = look_into(project, wheel)
        found[wheel.sha256] = known
    wheels = tuple(sorted(found.values(), key=lambda wheel: (wheel.file, wheel.sha256)))
    return LockResult(path, changed=KernelLock(made_from={}, wheels=wheels).write(path))


def _audited(project: Project) -> list[LockedWheel]:
    """List the locked wheels whose kernels matter, read anew from the locks."""
    paths = {project.wheel_lock_path(cell): cell.arch for cell in locked_cells(project)}
    return [
        wheel
        for path, arch in sorted(paths.items())
        for wheel in audited_wheels(WheelLock.read(path).wheels, project.matrix.archs[arch])
    ]


def make_base_lock(project: Project, cell: Cell, upgrade: Sequence[str], say: Say) -> LockResult:
    """Pin the Debian packages that a cell stands on."""
    path = project.base_lock_path(cell)
    name = project.matrix.archs[cell.arch].base
    base = project.matrix.bases[name]
    made_from = base_made_from(project.matrix, cell)
    if path.exists():
        old = BaseLock.read(path)
        packages = {deb.name for deb in old.debs}
        if old.made_from == made_from and not packages.union([name, UPGRADE_ALL]).intersection(upgrade):
            return LockResult(path, changed=False)
    say(f"Resolving {name} for {cell.platform}")
    lock = lock_base(
        base=name,
        debian=base.debian,
        packages=base.packages,
        platform=cell.platform,
        made_from=made_from,
        mirrors=DebianMirrors.discover(base.debian),
        say=say,
    )
    return LockResult(path, changed=lock.write(path))


def _make_source_lock(project: Project, say: Say) -> LockResult:
    path = source_lock_path(project.locks)
    made_from = sources_made_from(project.matrix)
    if path.exists() and SourceLock.read(path).made_from == made_from:
        return LockResult(path, changed=False)
    releases = [version.release for version in project.matrix.vllm.values() if version.release is not None]
    say(f"Looking up the archives of {len(releases)} releases")
    indexes = Indexes(IndexConfig.from_environment())
    sources = [source for release in releases for source in lock_sources("vllm", release, indexes)]
    return LockResult(path, changed=SourceLock(made_from=made_from, sources=tuple(sources)).write(path))


def _make_tool_lock(project: Project, say: Say) -> LockResult:
    path = tool_lock_path(project.locks)
    made_from = tools_made_from(project.matrix)
    if path.exists() and ToolLock.read(path).made_from == made_from:
        return LockResult(path, changed=False)
    say(f"Looking up {len(project.matrix.tools)} programs")
    indexes = Indexes(IndexConfig.from_environment())
    amd64, arm64 = (
        tuple(lock_tool(tool, machine, indexes) for tool in project.matrix.tools.values())
        for machine in ("amd64", "arm64")
    )
    return LockResult(path, changed=ToolLock(made_from=made_from, amd64=amd64, arm64=arm64).write(path))


def _make_model_lock(project: Project, *, look_up: bool, say: Say) -> LockResult:
    path = model_lock_path(project.locks)
    old = project.model_lock
    wanted = sorted({repo for model in project.matrix.models.values() for repo in model.repositories})
    revisions = tuple(entry for entry in old.revisions if entry.repo in wanted)
    if look_up:
        say(f"Asking the model hub for {len(wanted)} revisions")
        revisions = tuple(lock_revision(repo) for repo in wanted)
    lock = ModelLock(made_from=models_made_from(project.matrix), revisions=revisions)
    return LockResult(path, changed=lock.write(path))


def _check_upgrade_names(project: Project, cells: Sequence[Cell], upgrade: Sequence[str]) -> None:
    known = {UPGRADE_ALL, *project.matrix.bases}
    for cell in cells:
        if project.wheel_lock_path(cell).exists():
            known |= {wheel.name for wheel in project.wheel_lock(cell).wheels}
        if project.base_lock_path(cell).exists():
            known |= {deb.name for deb in project.base_lock(cell).debs}
    for name in upgrade:
        if name not in known:
            raise UnknownNameError(
                f"Nothing called {name!r} is locked.",
                where="the --upgrade option",
                why="It is neither a wheel, nor a Debian package, nor a base of these targets.",
                fix=did_you_mean(name, known).capitalize(),
            )


def _disagreements(project: Project, path: Path, expected: MadeFrom) -> Iterator[str]:
    """Say in what a lock does not answer the matrix, or that it is a copy of another place's lock."""
    if path == model_lock_path(project.locks):
        yield from _differences(ModelLock.read(path).made_from, expected)
        return
    if path == tool_lock_path(project.locks):
        yield from _differences(ToolLock.read(path).made_from, expected)
        return
    if path == kernel_lock_path(project.locks):
        yield from _unrecorded(project, KernelLock.read(path))
        return
    if path == source_lock_path(project.locks) or path.name == "flashinfer.toml":
        yield from _differences(SourceLock.read(path).made_from, expected)
        return
    lock: WheelLock | BaseLock
    if path.name.startswith("linux-"):
        lock = BaseLock.read(path)
        home = base_lock_path(project.locks, lock.base, lock.platform)
    else:
        lock = WheelLock.read(path)
        home = wheel_lock_path(project.locks, lock.vllm, lock.arch, lock.platform)
    if home == path:
        yield from _differences(lock.made_from, expected)
    else:
        yield f"is a copy of {home.relative_to(project.root)}"


def _unrecorded(project: Project, record: KernelLock) -> Iterator[str]:
    needed = {wheel.sha256: wheel.file for wheel in _audited(project)}
    recorded = {wheel.sha256: wheel.file for wheel in record.wheels}
    yield from (f"{file} is not looked into" for sha256, file in needed.items() if sha256 not in recorded)
    yield from (f"{file} is no longer locked" for sha256, file in recorded.items() if sha256 not in needed)


def _differences(old: MadeFrom, new: MadeFrom) -> Iterator[str]:
    for part in sorted(old.keys() | new.keys()):
        if part not in new:
            yield f"{part} is gone from matrix.yaml"
        elif part not in old:
            yield f"{part} is new in matrix.yaml"
        elif old[part] != new[part]:
            yield f"{part} changed in matrix.yaml"
