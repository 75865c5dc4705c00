"""What the ci commands share: their targets, and how they pass results to later steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from imagefactory.cli.command import say
from imagefactory.errors import UsageError

if TYPE_CHECKING:
    from imagefactory.plan.plan import Plan
    from imagefactory.project.cells import Cell
    from imagefactory.project.project import Project
    from imagefactory.publish.outcomes import Outcomes

TARGETS = "what to act on; repeatable, or several separated by spaces"
NIGHTLY_TARGETS = (
    f"{TARGETS} (default: everything locked, and every model on grafts and on the version `nightly`)"
)
PUSHED = "a folder with what `ci.push` handed on; repeatable (default: build/pushed)"
DRY_RUN = "only print what would be done"


def cells_named(project: Project, target: list[str], *, nightly: bool = False) -> list[Cell]:
    """Return the cells that targets name; without targets those of a night, or raise UnknownNameError."""
    from imagefactory.ci.night import nightly_cells
    from imagefactory.project.targets import select

    words = [word for text in target for word in text.split()]
    if words:
        return select(project.matrix, words)
    if nightly:
        return nightly_cells(project)
    raise UsageError(
        "unknown-name",
        "No target was named.",
        where="the --target option",
        why="This command has no default target.",
        fix="Name targets: --target 'MODEL@VLLM/ARCH/MACHINE ...'; `./inv ci.plan` lists them.",
    )


def plan_each(project: Project, target: list[str]) -> Outcomes[Plan]:
    """Plan the named targets; one that cannot be planned does not stop the others."""
    from imagefactory.plan.make import make_plan
    from imagefactory.publish.outcomes import Outcomes

    return Outcomes.of(cells_named(project, target), lambda cell: make_plan(project, cell), say)


def pushed_folders(project: Project, named: list[str]) -> list[Path]:
    """Return the folders with what the jobs that push images handed on."""
    from imagefactory.publish.handovers import handover_folder

    return [Path(folder) for folder in named] or [handover_folder(project)]


def write_outputs(values: dict[str, str]) -> None:
    """Pass values to later steps and jobs of a workflow."""
    _append("GITHUB_OUTPUT", "".join(f"{name}={value}\n" for name, value in values.items()))


def write_summary(text: str) -> None:
    """Add a text to the page of a workflow's run."""
    _append("GITHUB_STEP_SUMMARY", text)


def print_summary(text: str) -> None:
    """Print a text, and add it to the page of a workflow's run."""
    write_summary(text)
    print(text)


def _append(variable: str, text: str) -> None:
    """Add to a file that GitHub reads, if this is one of its jobs."""
    if path := os.environ.get(variable):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else f"{text}\n")
