"""Finds the wheel that a release's publisher made: a graft replaces parts of it, a whole compile takes some over."""

from __future__ import annotations

from imagefactory.locks.files import LockedSource, LockedWheel
from imagefactory.locks.project import Project, locked_cells
from imagefactory.resolve.wheelhouse.fit import MACHINES


def find_published(project: Project, release: str, platform: str) -> LockedWheel | LockedSource | None:
    """Return the published wheel of a vLLM release for a platform, if it is locked."""
    for cell in locked_cells(project):
        if cell.platform == platform and project.matrix.versions[cell.version].release == release:
            for wheel in project.wheel_lock(cell).wheels:
                if wheel.name == "vllm" and wheel.compiled is None:
                    return wheel
    machine, _ = MACHINES[platform]
    return project.source_lock.find(release, f"_{machine}.whl")
