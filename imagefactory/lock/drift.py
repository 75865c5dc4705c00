"""Checks that the committed locks still match the parts of matrix.yaml that they were made from."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from imagefactory.errors import LockError
from imagefactory.lock.flag_records import FlagLock, flags_made_from
from imagefactory.lock.wheel_contents import refuse_unmatched
from imagefactory.project.cells import Cell, buildable, compiled_distributions, leave_out_of
from imagefactory.project.locks.files import (
    BaseLock,
    CompanionLock,
    LicenceLock,
    Lock,
    LockedWheel,
    MadeFrom,
    ModelLock,
    SourceLock,
    ToolLock,
    WheelLock,
)
from imagefactory.project.locks.kernels import KernelLock, SlimLock, audited_wheels
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project, locked_cells
from imagefactory.project.server_versions import TITLES, ServerVersion, choice_for, version_key
from imagefactory.store.digests import Sha256, checksum


class Expected(NamedTuple):
    """A lock that the checkout should have, and what it should be made from."""

    path: Path
    kind: type[Lock]
    made_from: MadeFrom
    required: bool = False  # whether it is an error for the lock to be missing


def expected_locks(project: Project) -> list[Expected]:
    """List every lock that matrix.yaml accounts for; one that several cells share is listed for each of them."""
    matrix, locks = project.matrix, project.locks
    single: dict[type[Lock], MadeFrom] = {
        ModelLock: models_made_from(matrix),
        SourceLock: sources_made_from(matrix),
        ToolLock: tools_made_from(matrix),
        KernelLock: {},  # made from the wheel locks: _disagreements compares their wheels
    }
    expected = [Expected(kind.path(locks), kind, parts, required=True) for kind, parts in single.items()]
    expected += [
        Expected(FlagLock.path(locks, name), FlagLock, made_from)
        for name, made_from in flags_made_from(project).items()
    ]
    in_use = {project.base_lock_path(cell) for cell in locked_cells(project)}
    for cell in buildable(matrix):
        base, wheels = project.base_lock_path(cell), project.wheel_lock_path(cell)
        expected += [
            Expected(base, BaseLock, base_made_from(matrix, cell), required=base in in_use),
            Expected(wheels, WheelLock, wheels_made_from(matrix, cell), required=needs_lock(matrix, cell)),
        ]
    return expected


def needs_lock(matrix: Matrix, cell: Cell) -> bool:
    """Whether a cell must be locked: every version is, on the default arch, unless it waits for a compile."""
    return cell.arch == matrix.defaults.arch and not compiled_distributions(matrix, cell)


def cells_to_lock(project: Project) -> list[Cell]:
    """List the cells that are locked already, and those of new versions that must be."""
    return [
        cell
        for cell in buildable(project.matrix)
        if project.wheel_lock_path(cell).exists() or needs_lock(project.matrix, cell)
    ]


def check_locks(project: Project, expected: Iterable[Expected]) -> list[Path]:
    """Compare every lock of the checkout with what is expected, and return their paths; raise an error for drift."""
    by_path = {entry.path: entry for entry in expected}
    # The matrix does not determine these records: layers, slimmed libraries, licences, digests of others' images.
    records = {project.known_layers}
    records |= {kind.path(project.locks) for kind in (SlimLock, LicenceLock, CompanionLock)}
    present = {*project.locks.glob("**/*.toml")} - records
    required = {entry.path for entry in by_path.values() if entry.required}
    drifts: list[tuple[Path, str]] = []
    for path in sorted(present | required):
        relative = path.relative_to(project.root)
        if path not in by_path:
            drifts.append((relative, "locks something that matrix.yaml no longer builds"))
        elif not path.exists():
            drifts.append((relative, "is missing"))
        else:
            drifts += [(relative, what) for what in _disagreements(project, by_path[path])]
    if drifts:
        raise LockError(
            "lock-drift",
            f"{len(drifts)} disagreement{'s' if len(drifts) > 1 else ''} between matrix.yaml and the locks.",
            where=", ".join(dict.fromkeys(str(path) for path, _ in drifts)),
            why="; ".join(f"{path}: {what}" for path, what in drifts),
            fix="Run `./inv lock` and commit the result; delete locks that are no longer needed.",
        )
    refuse_unmatched(project.root / "matrix.yaml", (project.wheel_lock(cell) for cell in locked_cells(project)))
    return sorted(present)


def wheels_made_from(matrix: Matrix, cell: Cell) -> MadeFrom:
    arch, version = matrix.archs[cell.arch], matrix.versions[cell.version]
    left_out = leave_out_of(matrix, cell)
    needs = ("distribution", "indexes", "local_versions", "also", "without", "base")
    what = ("distribution", "files", "beside", "reason")
    return {
        f"{cell.server}.{version_key(cell.version)}": version_checksum(version, cell.arch),
        f"archs.{cell.arch}": checksum(_settings(arch, *needs)),
        f"bases.{arch.base}": checksum(_settings(matrix.bases[arch.base], "python", "glibc")),
        "conflicts": checksum([_settings(conflict) for conflict in matrix.conflicts]),
        # Where else an entry applies leaves this lock alone.
        **({"leave_out": checksum([_settings(entry, *what) for entry in left_out])} if left_out else {}),
    }


def version_checksum(version: ServerVersion, arch: str = "") -> Sha256:
    # What is compiled for other archs leaves the lock of this one alone.
    return checksum(_settings(version) | {"compile": choice_for(version.compile, arch)})


def base_made_from(matrix: Matrix, cell: Cell) -> MadeFrom:
    name = matrix.archs[cell.arch].base
    return {f"bases.{name}": checksum(_settings(matrix.bases[name], "debian", "packages"))}


def models_made_from(matrix: Matrix) -> MadeFrom:
    """Checksum what identifies each model: its repository, who can serve it, weights and drafters."""
    identity = ("repo", "generated", *TITLES, "weights", "drafters", "draft")
    return {f"models.{name}": checksum(_settings(model, *identity)) for name, model in matrix.models.items()}


def sources_made_from(matrix: Matrix) -> MadeFrom:
    releases = (version.release for version in matrix.vllm.values())
    return {f"vllm.{release}": checksum(release) for release in releases if release is not None}


def tools_made_from(matrix: Matrix) -> MadeFrom:
    return {f"tools.{name}": checksum(_settings(tool)) for name, tool in matrix.tools.items()}


def _settings(part: BaseModel, *names: str) -> dict[str, object]:
    # Without defaults: a new setting changes no checksum of what does not use it.
    return part.model_dump(mode="json", include=set(names) or None, exclude_defaults=True)


def wheels_to_audit(project: Project) -> list[LockedWheel]:
    """List the locked wheels whose kernels must be on record, reading the wheel locks afresh."""
    paths = {project.wheel_lock_path(cell): cell.arch for cell in locked_cells(project)}
    return [
        wheel
        for path, arch in sorted(paths.items())
        for wheel in audited_wheels(WheelLock.read(path), project.matrix.archs[arch])
    ]


def _disagreements(project: Project, expected: Expected) -> Iterator[str]:
    lock = expected.kind.read(expected.path)
    home = lock.home(project.locks)
    if home != expected.path:
        yield f"is a copy of {home.relative_to(project.root)}"
        return
    if isinstance(lock, KernelLock):
        needed = {wheel.sha256: wheel.file for wheel in wheels_to_audit(project)}
        recorded = {wheel.sha256: wheel.file for wheel in lock.wheels}
        yield from (f"{file} has not been inspected" for sha, file in needed.items() if sha not in recorded)
        yield from (f"{file} is no longer locked" for sha, file in recorded.items() if sha not in needed)
        return
    old, new = lock.made_from, expected.made_from
    for part in sorted(old.keys() | new.keys()):
        if old.get(part) != new.get(part):
            how = "is new in" if part not in old else "changed in" if part in new else "is gone from"
            yield f"{part} {how} matrix.yaml"
