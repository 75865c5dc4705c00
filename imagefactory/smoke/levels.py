"""The levels of smoke tests: those of an arch, those that a tag requires, and where `serve` runs."""

from __future__ import annotations

from collections.abc import Iterable

from imagefactory.errors import did_you_mean
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell, buildable
from imagefactory.matrix.matrix import Matrix
from imagefactory.servers.known import server_of
from imagefactory.smoke.record import LEVELS, Level


def levels_of(matrix: Matrix, arch: str) -> tuple[Level, ...]:
    """List the levels that apply to an arch's images."""
    return LEVELS if has_gpu(matrix, arch) else tuple(level for level in LEVELS if level != "gpu")


def required_levels(matrix: Matrix, arch: str) -> tuple[Level, ...]:
    """List the levels that an arch's images must pass to get a tag, according to matrix.yaml.

    Other levels need not run, but must not fail (`SmokeRecord.missing`).
    """
    return tuple(matrix.archs[arch].smoke)


def levels_named(names: Iterable[str], matrix: Matrix, arch: str) -> tuple[Level, ...]:
    """Parse the names of levels, and sort them in their order of execution; default: all of the arch."""
    names = [name.strip() for word in names for name in word.split(",") if name.strip()]
    for name in names:
        if name not in LEVELS:
            raise UnknownNameError(
                f"There is no level {name!r}.",
                where="the --level option",
                why=f"Smoke tests have the levels {', '.join(LEVELS)}.",
                fix=did_you_mean(name, LEVELS).capitalize(),
            )
    return tuple(level for level in LEVELS if level in names) if names else levels_of(matrix, arch)


def has_gpu(matrix: Matrix, arch: str) -> bool:
    """Whether an arch has a GPU."""
    return matrix.archs[arch].capability is not None


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
