"""What `pair doctor` looks at: both machines, and what an image needs of them."""

from __future__ import annotations

from collections.abc import Sequence

from imagefactory.errors import UsageError
from imagefactory.pair.containers import find
from imagefactory.pair.machines import There
from imagefactory.pair.node import Node
from imagefactory.pair.problem import Problem
from imagefactory.pair.rules import Need
from imagefactory.pair.up import need_of, probe
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project


def examine(project: Project, cell: Cell, there: There, models: str, interface: str) -> tuple[Node, Node, Need]:
    head, worker = probe(there, models)
    try:
        running = bool(find(there.name))
    except UsageError:
        running = False
    return head, worker, need_of(project, cell, interface=interface, running=running)


def refuse_problems(found: Sequence[Problem]) -> None:
    """Raise the first problem that a start would not survive."""
    for problem in found:
        if problem.severity == "refuse":
            raise problem.error()
