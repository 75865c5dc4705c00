"""Summarizes a target before it is planned: its mods and kernels, and whether it is locked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from imagefactory.project.cells import Cell, intended_kernels
from imagefactory.project.project import Project


@dataclass(frozen=True)
class TargetStatus:
    """The status of a target, as the table and the JSON output show it."""

    model: str
    version: str
    arch: str
    platform: str
    mods: str
    kernels: str
    locked: Literal["yes", "no"]
    revision: Literal["generated", "pinned", "unpinned"]


def target_status(project: Project, cell: Cell) -> TargetStatus:
    """Look a target up in the matrix and the locks."""
    model = project.matrix.models[cell.model]
    locked = project.is_locked(cell)
    pinned = all(project.model_lock.commit_of(repository) for repository in model.repositories)
    return TargetStatus(
        model=cell.model,
        version=cell.version,
        arch=cell.arch,
        platform=cell.platform,
        mods=model.mods if isinstance(model.mods, str) else " ".join(model.mods),
        kernels=project.wheel_lock(cell).kernels if locked else intended_kernels(project.matrix, cell),
        locked="yes" if locked else "no",
        revision="generated" if not model.repositories else "pinned" if pinned else "unpinned",
    )
