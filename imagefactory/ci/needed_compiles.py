"""Finds what must be compiled before cells can be locked, and locks cells with compiled wheels.

A version that follows a branch moves with it: the commit that the branch is at tonight decides which wheel is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from imagefactory.ci.jobs import Compile
from imagefactory.compile.git_sources import head_of
from imagefactory.compile.settings import FILE
from imagefactory.errors import NetworkError
from imagefactory.lock.making import make_locks
from imagefactory.lock.wheelhouse.adopt import chips_of, mods_of_sources, why_not_for
from imagefactory.lock.wheelhouse.keep import CompiledWheel
from imagefactory.lock.wheelhouse.share import remote_wheels
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.cells import Cell, compiled_distributions
from imagefactory.project.project import Project
from imagefactory.publish.attest.licence_record import update_licences
from imagefactory.store.digests import checksum, file_sha256
from imagefactory.store.progress import Say

Heads = Callable[[str, str], str | None]
"""Returns the commit that a reference of a repository is at, or None if there is no such reference."""


@dataclass
class Compiles:
    """Wheels that must be compiled, and wheels that were compiled but are not locked yet."""

    jobs: list[Compile] = field(default_factory=list)
    adopt: dict[Cell, tuple[str, ...]] = field(default_factory=dict)
    """The keys of the wheels that each cell's lock has to name."""


def find_compiles(
    project: Project, repository: Repository | None, cells: Iterable[Cell], heads: Heads = head_of
) -> Compiles:
    """Compare the wheels that cells need compiled with those in the registry, if there is one."""
    wanted = {cell: names for cell in cells if (names := compiled_distributions(project.matrix, cell))}
    found = Compiles()
    shared = remote_wheels(repository) if repository and wanted else []
    commits: dict[str, str | None] = {}
    jobs: dict[tuple[str, str, str, str], Compile] = {}
    for cell, names in wanted.items():
        version = project.matrix.versions[cell.version]
        if version.git and cell.version not in commits:
            commits[cell.version] = None
            with suppress(NetworkError):
                commits[cell.version] = heads(version.git, version.ref or "HEAD")
        keys: list[str] = []
        for name in names:
            wheel, why = _choose(project, cell, name, shared, commits.get(cell.version))
            if wheel is None:
                what = "flashinfer" if name.startswith("flashinfer") else name
                source = _source(project, cell, commits.get(cell.version))
                job = Compile(what, cell.version, cell.arch, cell.platform, why, source)
                jobs.setdefault((what, cell.version, cell.arch, cell.platform), job)
            else:
                keys.append(wheel.key)
        locked = project.wheel_lock(cell).wheels if project.is_locked(cell) else ()
        if len(keys) == len(names) and not {*keys} <= {wheel.compiled for wheel in locked}:
            found.adopt[cell] = tuple(keys)
    found.jobs = list(jobs.values())
    return found


def _source(project: Project, cell: Cell, commit: str | None) -> str:
    """Hash what is compiled for a cell; a branch whose commit is unknown is like no other."""
    version = project.matrix.versions[cell.version]
    at = f"{version.git}@{commit or uuid4()}" if version.git else str(version.version)
    pins = project.root / FILE
    return checksum([at, mods_of_sources(project, cell), file_sha256(pins) if pins.exists() else ""])[:16]


def adopt(project: Project, adopted: dict[Cell, tuple[str, ...]], say: Say) -> list[str]:
    """Lock cells with the wheels that were compiled for them, and return the files that changed."""
    if not adopted:
        return []
    changed: list[Path] = []
    for keys in dict.fromkeys(adopted.values()):
        cells = [cell for cell, own in adopted.items() if own == keys]
        made = make_locks(project, cells, wheels=keys, say=say)
        changed += [result.path for result in made if result.changed]
    path, differs = update_licences(project, say)
    changed += [path] if differs else []
    return list(dict.fromkeys(path.relative_to(project.root).as_posix() for path in changed))


def _choose(
    project: Project, cell: Cell, name: str, shared: Sequence[CompiledWheel], commit: str | None
) -> tuple[CompiledWheel | None, str]:
    """Return the wheel that a cell needs, or the reason why it must be compiled."""
    wanted = (name, cell.platform, chips_of(project, cell, name))
    mine = [
        wheel
        for wheel in shared
        if (wheel.inputs.name, wheel.inputs.platform, wheel.inputs.arch_list) == wanted
        and why_not_for(project, cell, wheel.inputs) is None
    ]
    if name != "vllm":
        return (mine[-1], "") if mine else (None, f"{name} was never compiled for {cell.arch}")
    version = project.matrix.versions[cell.version]
    if commit is not None:
        at = [wheel for wheel in mine if wheel.inputs.sources.get("vllm") == f"{version.git}@{commit}"]
        why = f"{version.git} {version.ref} is at {commit[:12]}"
    else:
        # The branch's commit is unknown: the newest compile will do.
        at = [wheel for wheel in mine if wheel.inputs.version.startswith(str(version.version.base_version))]
        why = f"vLLM {cell.version} was never compiled for {cell.arch}"
    if not at:
        return None, why
    mods = mods_of_sources(project, cell)
    fitting = [wheel for wheel in at if wheel.inputs.mods == mods]
    return (fitting[-1], "") if fitting else (None, "the mods of its sources changed")
