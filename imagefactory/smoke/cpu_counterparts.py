"""Sisters of an image: the same vLLM for a CPU, which can serve on a machine without a GPU."""

from __future__ import annotations

from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell, buildable
from imagefactory.smoke.levels import has_gpu


def cpu_counterparts(project: Project, vllm: str) -> list[Cell]:
    """List the cells of a vLLM version that serve a model of their own without a GPU, locked or not."""
    matrix = project.matrix
    return [
        cell
        for cell in buildable(matrix)
        if cell.vllm == vllm and not has_gpu(matrix, cell.arch) and matrix.models[cell.model].generated
    ]


def serving_elsewhere(project: Project, cell: Cell) -> str:
    """Name the platform whose machines have to test how a cell serves; empty where its own will do.

    What is tested is Python code that is the same on every platform, so a machine of another kind is good for that.
    """
    if not has_gpu(project.matrix, cell.arch):
        return ""
    platforms = [
        sister.platform for sister in cpu_counterparts(project, cell.vllm) if project.is_locked(sister)
    ]
    return "" if not platforms or cell.platform in platforms else platforms[0]
