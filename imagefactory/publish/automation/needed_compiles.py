"""What has to be compiled before cells can be locked, and which compiled wheels wait for a lock.

A version that follows a branch moves with it: the commit that the branch has tonight decides which wheel is wanted.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from imagefactory.environment.progress import Say
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell, compiled_distributions
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.attest.licence_record import update_licences
from imagefactory.publish.automation.jobs import Compile
from imagefactory.resolve.locking import make_locks
from imagefactory.resolve.wheelhouse.adopt import mods_of_sources
from imagefactory.resolve.wheelhouse.remote import RemoteWheel, remote_wheels

GIT_HOST: Final = "https://github.com"
_PATIENCE: Final = 60
Heads = Callable[[str, str], str | None]
"""Repository and reference -> the commit that it names now; None when that cannot be found out."""


@dataclass
class Compiles:
    """What is missing, and what is there but not locked."""

    jobs: list[Compile] = field(default_factory=list)
    adopt: dict[Cell, tuple[str, ...]] = field(default_factory=dict)
    """Cell -> the keys of the wheels that its lock has to name."""


def head_of(git: str, ref: str) -> str | None:
    """Ask which commit a branch or a pull request is at."""
    command = ["git", "ls-remote", "--exit-code", f"{GIT_HOST}/{git}", ref]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split()[0] if done.stdout.strip() else None


def find_compiles(
    project: Project, repository: Repository | None, cells: Iterable[Cell], heads: Heads = head_of
) -> Compiles:
    """Compare what cells need compiled with what the registry has, if there is anything in it."""
    wanted = [cell for cell in cells if compiled_distributions(project.matrix, cell)]
    found = Compiles()
    if not wanted:
        return found
    shared = remote_wheels(repository) if repository else []
    commits: dict[str, str | None] = {}
    jobs: dict[tuple[str, str, str, str], Compile] = {}
    for cell in wanted:
        version = project.matrix.vllm[cell.vllm]
        if version.git and cell.vllm not in commits:
            commits[cell.vllm] = heads(version.git, version.ref or "HEAD")
        keys: list[str] = []
        for name in compiled_distributions(project.matrix, cell):
            wheel, why = _choose(project, cell, name, shared, commits.get(cell.vllm))
            if wheel is None:
                what = "flashinfer" if name.startswith("flashinfer") else name
                job = Compile(what, cell.vllm, cell.arch, cell.platform, why)
                jobs.setdefault((what, cell.vllm, cell.arch, cell.platform), job)
            else:
                keys.append(wheel.key)
        if len(keys) == len(compiled_distributions(project.matrix, cell)) and not _names(project, cell, keys):
            found.adopt[cell] = tuple(keys)
    found.jobs = list(jobs.values())
    return found


def adopt(project: Project, adopted: dict[Cell, tuple[str, ...]], say: Say) -> list[str]:
    """Lock cells with the wheels that were compiled for them; give the files that changed."""
    if not adopted:
        return []
    changed: list[str] = []
    for keys in dict.fromkeys(adopted.values()):
        cells = [cell for cell, own in adopted.items() if own == keys]
        results = make_locks(project, cells, wheels=keys, say=say)
        changed += [result.path.relative_to(project.root).as_posix() for result in results if result.changed]
    path, differs = update_licences(project, say)
    if differs:
        changed.append(path.relative_to(project.root).as_posix())
    return list(dict.fromkeys(changed))


def _choose(
    project: Project, cell: Cell, name: str, shared: Sequence[RemoteWheel], commit: str | None
) -> tuple[RemoteWheel | None, str]:
    """Find the wheel that a cell wants, or say why there is none."""
    arch = project.matrix.archs[cell.arch]
    chips = arch.flashinfer_cuda_arch_list if name.startswith("flashinfer") else arch.torch_cuda_arch_list
    mine = [
        wheel
        for wheel in shared
        if (wheel.inputs.name, wheel.inputs.platform, wheel.inputs.arch_list)
        == (name, cell.platform, chips or "")
    ]
    if name != "vllm":
        return (mine[-1], "") if mine else (None, f"{name} was never compiled for {cell.arch}")
    version = project.matrix.vllm[cell.vllm]
    if commit is not None:
        at = [wheel for wheel in mine if wheel.inputs.sources.get("vllm") == commit]
        why = f"{version.git} {version.ref} is at {commit[:12]}"
    else:
        # Where nobody can say at which commit the branch is, the newest compile will do.
        at = [wheel for wheel in mine if wheel.inputs.version.startswith(str(version.version.base_version))]
        why = f"vLLM {cell.vllm} was never compiled for {cell.arch}"
    if not at:
        return None, why
    mods = mods_of_sources(project, cell)
    fitting = [wheel for wheel in at if wheel.inputs.mods == mods]
    return (fitting[-1], "") if fitting else (None, "the mods of its sources changed")


def _names(project: Project, cell: Cell, keys: Sequence[str]) -> bool:
    """Say whether the lock of a cell names these wheels already."""
    if not project.is_locked(cell):
        return False
    locked = {wheel.compiled for wheel in project.wheel_lock(cell).wheels}
    return set(keys) <= locked
