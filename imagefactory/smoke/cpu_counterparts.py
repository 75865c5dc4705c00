"""Finds images of the same vLLM that can serve without a GPU."""

from __future__ import annotations

from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell, buildable
from imagefactory.servers.known import server_of
from imagefactory.smoke.levels import has_gpu


def cpu_counterparts(project: Project, vllm: str) -> list[Cell]:
    """List the cells of a vLLM version that serve a generated model without a GPU, locked or not."""
    matrix = project.matrix
    return [
        cell
        for cell in buildable(matrix)
        if cell.version == vllm and not has_gpu(matrix, cell.arch) and matrix.models[cell.model].generated
    ]


def serving_elsewhere(project: Project, cell: Cell) -> str:
    """Return the platform that has to run the level `serve` for a cell; empty if the cell's own can.

    That level tests Python code, which is the same on every platform.
    """
    if not has_gpu(project.matrix, cell.arch) or server_of(cell).on_cpu:
        return ""
    platforms = [
        other.platform for other in cpu_counterparts(project, cell.version) if project.is_locked(other)
    ]
    return "" if not platforms or cell.platform in platforms else platforms[0]
