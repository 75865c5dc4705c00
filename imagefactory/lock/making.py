"""Makes the locks that a set of cells needs, and leaves alone those that still match the matrix."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from imagefactory.errors import NetworkError, unknown_name
from imagefactory.lock.auditing import look_into
from imagefactory.lock.base_locks import lock_base, security_updates
from imagefactory.lock.debian_index import read_index
from imagefactory.lock.drift import (
    base_made_from,
    models_made_from,
    sources_made_from,
    tools_made_from,
    wheels_made_from,
    wheels_to_audit,
)
from imagefactory.lock.hub import HubRevision, ask_for_all
from imagefactory.lock.lookups import lock_archive, lock_companions
from imagefactory.lock.mirrors import DebianMirrors
from imagefactory.lock.wheel_locks import WheelRequest, lock_wheels
from imagefactory.lock.wheelhouse.adopt import choose_compiled, is_superseded, refuse_unfit_kernels, refuse_unknown
from imagefactory.lock.wheelhouse.keep import KeptWheel
from imagefactory.project.cells import (
    Cell,
    compiled_distributions,
    first_of_release,
    intended_kernels,
    leave_out_of,
)
from imagefactory.project.locks.files import (
    BaseLock,
    CompanionLock,
    LockedRevision,
    ModelLock,
    SourceLock,
    ToolLock,
    WheelLock,
)
from imagefactory.project.locks.indexed_files import configured_indexes
from imagefactory.project.locks.kernels import KernelLock, WheelKernels
from imagefactory.project.project import Project
from imagefactory.project.server_versions import VLLM
from imagefactory.project.servers.known import server_of
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.progress import Say, count

UPGRADE_ALL = "all"
UPGRADE_BASE = "base"  # every Debian package, whatever the base is called
UPGRADE_COMPANIONS = "companions"  # the images of others
UPGRADE_MODELS = "models"  # the revisions of models and drafters


@dataclass(frozen=True)
class LockResult:
    """A lock, and whether making it changed the file."""

    path: Path
    changed: bool
    security: tuple[str, ...] = ()  # the Debian packages that got a security update
    failures: tuple[NetworkError, ...] = ()  # the repositories that could not be pinned, and why


def make_locks(
    project: Project,
    cells: Sequence[Cell],
    *,
    upgrade: Sequence[str] = (),
    wheels: Sequence[str] = (),
    models: bool = False,
    say: Say,
) -> Iterator[LockResult]:
    """Make the locks that cells need; locks that still match the matrix are left alone.

    `upgrade` names packages to upgrade, `wheels` the keys (or key prefixes) of the compiled wheels to adopt when
    several fit, and `models` also looks up the revisions of the cells' models that have none.
    """
    _check_upgrade_names(project, cells, upgrade)
    refuse_unknown(project, wheels)
    bases = {(project.matrix.archs[cell.arch].base, cell.platform): cell for cell in cells}
    for cell in bases.values():
        yield make_base_lock(project, cell, upgrade, say)
    locks = {(cell.version, cell.arch, cell.platform): cell for cell in cells}
    for cell in locks.values():
        yield _make_wheel_lock(project, cell, upgrade, wheels, say)
    # After the wheel locks, which say whose kernels to inspect.
    yield _make_kernel_lock(project, say)
    yield _make_source_lock(project, say)
    yield _make_tool_lock(project, say)
    yield _make_model_lock(project, cells if models or UPGRADE_MODELS in upgrade else (), upgrade, say)
    if UPGRADE_COMPANIONS in upgrade:
        say(f"Asking for the digests of {count(len(project.matrix.companions), 'image')} of others")
        lock = lock_companions(project.matrix.companions, project.companion_lock, say)
        path = CompanionLock.path(project.locks)
        yield LockResult(path, changed=lock.write(path))


def _make_wheel_lock(
    project: Project, cell: Cell, upgrade: Sequence[str], wheels: Sequence[str], say: Say
) -> LockResult:
    matrix, path = project.matrix, project.wheel_lock_path(cell)
    old = WheelLock.read(path) if path.exists() else None
    made_from = wheels_made_from(matrix, cell)
    if old is not None and old.made_from == made_from and not wheels and not is_superseded(project, cell, old):
        names = {UPGRADE_ALL, *(wheel.name for wheel in (*old.wheels, *old.left_out))}
        if names.isdisjoint(upgrade):
            return LockResult(path, changed=False)
    version, arch = matrix.versions[cell.version], matrix.archs[cell.arch]
    say(f"Resolving {cell.runs} for {cell.arch} ({cell.platform})")
    request = WheelRequest(
        cell=cell,
        distribution=server_of(cell).distribution_on(arch),
        release=str(version.version),
        arch=arch,
        base=matrix.bases[matrix.archs[cell.arch].base],
        conflicts=matrix.conflicts,
        made_from=made_from,
        compiled=compiled_distributions(matrix, cell),
        kernels=intended_kernels(matrix, cell),
        leave_out=leave_out_of(matrix, cell),
        overrides=[override.requirement for override in version.overrides],
        extras=version.extras,
        matrix=project.root / "matrix.yaml",
    )
    # Whatever both servers can have in the same version becomes a layer that their images share.
    like = None if cell.server == VLLM else _lock_of(project, cell, matrix.defaults.vllm)
    if UPGRADE_ALL not in upgrade:  # locks of one release differ only where they must
        like = old or _lock_of(project, cell, first_of_release(matrix, cell.version)) or like
    old_wheels = [*like.wheels, *like.left_out] if like else []
    keep = [wheel for wheel in old_wheels if wheel.name not in upgrade]
    locked = {wheel.name: wheel.compiled for wheel in keep if wheel.compiled}

    def adopt(name: str, version: str) -> KeptWheel:
        return choose_compiled(project, cell, name, version, key_prefixes=wheels, locked=locked.get(name), say=say)

    lock = lock_wheels(
        request, config=IndexConfig.from_environment(), store=project.store, adopt=adopt, keep=keep, say=say
    )
    refuse_unfit_kernels(project, cell, lock)
    return LockResult(path, changed=lock.write(path))


def _lock_of(project: Project, cell: Cell, version: str) -> WheelLock | None:
    path = project.wheel_lock_path(replace(cell, version=version))
    return WheelLock.read(path) if path.exists() else None


def _make_kernel_lock(project: Project, say: Say) -> LockResult:
    path = KernelLock.path(project.locks)
    kernels: dict[str, WheelKernels] = {}
    for wheel in wheels_to_audit(project):
        wheel_kernels = kernels.get(wheel.sha256) or project.kernel_lock.find(wheel.sha256)
        if wheel_kernels is None:
            say(f"Inspecting the kernels of {wheel.file}")
            wheel_kernels = look_into(project, wheel)
        kernels[wheel.sha256] = wheel_kernels
    wheels = tuple(sorted(kernels.values(), key=lambda wheel: (wheel.file, wheel.sha256)))
    return LockResult(path, changed=KernelLock(made_from={}, wheels=wheels).write(path))


def make_base_lock(project: Project, cell: Cell, upgrade: Sequence[str], say: Say) -> LockResult:
    path = project.base_lock_path(cell)
    name = project.matrix.archs[cell.arch].base
    base = project.matrix.bases[name]
    made_from = base_made_from(project.matrix, cell)
    old = BaseLock.read(path) if path.exists() else None
    if old is not None:
        names = {name, UPGRADE_ALL, UPGRADE_BASE, *(deb.name for deb in old.debs)}
        if old.made_from == made_from and names.isdisjoint(upgrade):
            return LockResult(path, changed=False)
    say(f"Resolving {name} for {cell.platform}")
    mirrors = DebianMirrors.discover(base.debian)
    locked = old.suites if old else ()
    index = read_index(debian=base.debian, platform=cell.platform, mirrors=mirrors, say=say, locked=locked)
    lock = lock_base(index, base=name, packages=base.packages, platform=cell.platform, made_from=made_from, say=say)
    security = security_updates(old, lock, index) if old else ()
    return LockResult(path, changed=lock.write(path), security=security)


def _make_source_lock(project: Project, say: Say) -> LockResult:
    path, made_from = SourceLock.path(project.locks), sources_made_from(project.matrix)
    if path.exists() and SourceLock.read(path).made_from == made_from:
        return LockResult(path, changed=False)
    releases = dict.fromkeys(version.release for version in project.matrix.vllm.values() if version.release)
    say(f"Looking up the archives of {len(releases)} releases")
    indexes = configured_indexes()
    # One wheel is enough: the Python files are the same in all of a release.
    why, kinds = "Mods are checked against it.", ("wheel", "sdist")
    sources = [lock_archive(kind, VLLM, release, indexes, why) for release in releases for kind in kinds]
    return LockResult(path, changed=SourceLock(made_from=made_from, sources=tuple(sources)).write(path))


def _make_tool_lock(project: Project, say: Say) -> LockResult:
    path, made_from = ToolLock.path(project.locks), tools_made_from(project.matrix)
    if path.exists() and ToolLock.read(path).made_from == made_from:
        return LockResult(path, changed=False)
    tools, indexes = project.matrix.tools.values(), configured_indexes()
    say(f"Looking up {len(tools)} programs")
    why = "The factory runs it on that architecture."
    amd64, arm64 = (
        tuple(lock_archive(kind, tool.distribution, tool.version, indexes, why) for tool in tools)
        for kind in ("amd64 wheel", "arm64 wheel")
    )
    return LockResult(path, changed=ToolLock(made_from=made_from, amd64=amd64, arm64=arm64).write(path))


def _make_model_lock(project: Project, cells: Sequence[Cell], upgrade: Sequence[str], say: Say) -> LockResult:
    """Pin the models of cells: those without a revision, or all of them; what others have stays."""
    wanted = {repo for cell in cells for repo in project.matrix.models[cell.model].repositories}
    if UPGRADE_MODELS not in upgrade:
        wanted = {repo for repo in wanted if project.model_lock.commit_of(repo) is None}
    if wanted:
        say(f"Asking the model hub for {count(len(wanted), 'revision')}")
    answers = ask_for_all((repo, "main") for repo in sorted(wanted))
    result = pin_models(project, [answer for answer in answers if isinstance(answer, HubRevision)])
    return replace(result, failures=tuple(answer for answer in answers if isinstance(answer, NetworkError)))


def pin_models(project: Project, new: Iterable[HubRevision]) -> LockResult:
    """Pin repositories at these revisions; the others of the matrix stay as they are."""
    path, models = ModelLock.path(project.locks), project.matrix.models.values()
    pinned = {entry.repo: entry for entry in project.model_lock.revisions}
    pinned |= {revision.repo: LockedRevision(repo=revision.repo, commit=revision.commit) for revision in new}
    in_use = {repo for model in models for repo in model.repositories}
    revisions = tuple(pinned[repo] for repo in sorted(in_use & pinned.keys()))
    lock = ModelLock(made_from=models_made_from(project.matrix), revisions=revisions)
    return LockResult(path, changed=lock.write(path))


def _check_upgrade_names(project: Project, cells: Sequence[Cell], upgrade: Sequence[str]) -> None:
    upgradable = {UPGRADE_ALL, UPGRADE_BASE, UPGRADE_COMPANIONS, UPGRADE_MODELS, *project.matrix.bases}
    for cell in cells if upgrade else ():
        if project.wheel_lock_path(cell).exists():
            upgradable |= {wheel.name for wheel in project.wheel_lock(cell).wheels}
        if project.base_lock_path(cell).exists():
            upgradable |= {deb.name for deb in project.base_lock(cell).debs}
    if unknown := [name for name in upgrade if name not in upgradable]:
        why = "It is neither a wheel, nor a Debian package, nor a base of these targets."
        raise unknown_name("package", unknown[0], upgradable, "the --upgrade option", why=why)
