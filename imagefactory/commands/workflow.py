"""What the commands of workflows share: their targets, and how they pass results to later steps."""

from __future__ import annotations

import os
from typing import Any

from imagefactory.commands.command import say

TARGETS = "what to act on; repeatable, or several separated by spaces"


DRY_RUN = "only print what would be done"


def cells_named(project: Any, target: list[str]) -> list[Any]:
    from imagefactory.errors.matrix import UnknownNameError
    from imagefactory.matrix.targets import select

    words = [word for text in target for word in text.split()]
    if not words:
        raise UnknownNameError(
            "No target was named.",
            where="the --target option",
            why="This command has no default target.",
            fix="Name targets: --target 'MODEL@VLLM/ARCH/MACHINE ...'; `invoke ci.plan` lists them.",
        )
    return select(project.matrix, words)


def plan_each(project: Any, target: list[str]) -> Any:
    """Plan what is named; a target that cannot be planned does not stop the others."""
    from imagefactory.plan.make import make_plan
    from imagefactory.publish.outcomes import Outcomes

    return Outcomes.of(cells_named(project, target), lambda cell: make_plan(project, cell), say)


def open_repository(project: Any) -> Any:
    from imagefactory.oci.registry.repository import Repository

    return Repository.open(project.matrix.effective_registry)


def write_outputs(values: dict[str, str]) -> None:
    """Pass values to later steps and jobs of a workflow."""
    from imagefactory.publish.automation.run_summary import append

    path = os.environ.get("GITHUB_OUTPUT")
    if path:
        append(path, "".join(f"{name}={value}\n" for name, value in values.items()))


def write_summary(text: str) -> None:
    """Show a text on the page of a workflow's run."""
    from imagefactory.publish.automation.run_summary import append

    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        append(path, text)
