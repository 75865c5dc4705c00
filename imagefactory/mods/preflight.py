"""Try the mods of an image before a build, so that one that does not fit stops it early."""

from __future__ import annotations

from imagefactory.locks.files import LockedSource
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.mods.choose import choose_mods
from imagefactory.mods.source_files import ReleaseSource, needed_git_source
from imagefactory.store.indexes import Indexes
from images.shipped.mods.apply import Reader, apply_mods
from images.shipped.mods.manifest import GitSource, Mod, Variant


def refuse_unfit_mods(project: Project, cell: Cell, indexes: Indexes) -> None:
    """Apply the mods of a cell to the files that they change, and discard the result."""
    groups: dict[tuple[str, GitSource | None], list[tuple[Mod, Variant]]] = {}
    for mod, variant in choose_mods(project.matrix, cell, project.mods).mods:
        groups.setdefault((mod.manifest.distribution, variant.source), []).append((mod, variant))
    for (distribution, source), group in groups.items():
        if source is not None:
            read: Reader = needed_git_source(*group[0], source).read
        else:
            read = _wheel(project, cell, distribution, indexes).read
        apply_mods(group, read)


def _wheel(project: Project, cell: Cell, distribution: str, indexes: Indexes) -> ReleaseSource:
    if distribution == "vllm":
        distribution = project.matrix.archs[cell.arch].distribution
    # The plan already found this wheel in the lock.
    [wheel] = [wheel for wheel in project.wheel_lock(cell).wheels if wheel.name == distribution]
    locked = LockedSource(
        name=wheel.name, version=wheel.version, file=wheel.file, sha256=wheel.sha256, size=wheel.size
    )
    return ReleaseSource(locked, indexes, project.store)
