"""What the commands of workflows share: their targets, and how they hand results to later steps."""

from __future__ import annotations

import os
from typing import Any

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
            why="This command acts on what it is told, and on nothing else.",
            fix="Name targets: --target 'MODEL@VLLM/ARCH/MACHINE ...'; `invoke ci.plan` lists them.",
        )
    return select(project.matrix, words)


def open_repository(project: Any) -> Any:
    from imagefactory.oci.registry.repository import Repository

    return Repository.open(project.matrix.effective_registry)


def write_outputs(values: dict[str, str]) -> None:
    """Hand values on to later steps and jobs of a workflow."""
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
