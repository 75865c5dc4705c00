"""Finds images that were built here, by target."""

from __future__ import annotations

from collections.abc import Sequence

from imagefactory.errors import BuildError
from imagefactory.oci.layout import Layout
from imagefactory.plan.make import make_plan
from imagefactory.plan.status import last_plan
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.project.targets import select, select_one


def built_layouts(
    project: Project, targets: Sequence[str], *, one: bool = False, stale: bool = False
) -> list[tuple[Cell, Layout, str]]:
    """Find the images that were built for targets, each with its name in engines.

    An image built before its matrix, locks, mods or serve program changed is refused unless `stale`.
    """
    cells = (
        [select_one(project.matrix, targets[0] if targets else "")]
        if one
        else select(project.matrix, targets)
    )
    repository = project.matrix.effective_registry.rpartition("/")[2].lower()
    found = []
    for cell in cells:
        layout = Layout(project.build_folder(cell))
        layout.manifest_digest()  # fails with a remedy when there is no image
        if not stale:
            _refuse_stale(project, cell)
        found.append((cell, layout, f"{repository}:{cell.slug}"))
    return found


def _refuse_stale(project: Project, cell: Cell) -> None:
    built, current = last_plan(project.build_folder(cell)), make_plan(project, cell)
    if built is None or built.key != current.key:
        raise BuildError(
            "no-image",
            f"The image of {cell} is not up to date.",
            where=project.build_folder(cell),
            why="Its inputs changed after it was built (`./inv plan --diff` shows how).",
            fix=f"Run `./inv build --target {cell}` again.",
        )
