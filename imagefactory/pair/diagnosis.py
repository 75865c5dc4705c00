"""What `pair doctor` shows: both machines side by side, and all that stands in the way."""

from __future__ import annotations

from imagefactory.errors import UsageError
from imagefactory.pair.cable import Cable, End, search
from imagefactory.pair.containers import find
from imagefactory.pair.machines import There
from imagefactory.pair.node import Node
from imagefactory.pair.problem import Problem
from imagefactory.pair.rules import problems
from imagefactory.pair.up import need_of, probe
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.progress import size

NONE = "none"


def diagnose(
    project: Project, cell: Cell, there: There, models: str, interface: str
) -> tuple[list[tuple[str, str, str]], list[Problem]]:
    """Return rows about both machines, and what stands in the way of an image."""
    nodes = probe(there, models)
    try:
        running = bool(find(there.name))
    except UsageError:
        running = False
    need = need_of(project, cell, interface=interface, running=running)
    cable = search(*nodes, interface)
    ends = (cable.head, cable.worker) if isinstance(cable, Cable) else (None, None)
    ours, theirs = (dict(_facts(node, end)) for node, end in zip(nodes, ends, strict=True))
    return [(name, ours[name], theirs[name]) for name in ours], problems(*nodes, need)


def _facts(node: Node, end: End | None) -> list[tuple[str, str]]:
    disk = node.disks.weights
    return [
        ("host", node.host),
        ("cable", str(end.interface) if end else NONE),
        ("MTU", str(end.interface.mtu) if end else NONE),
        ("RoCE", ", ".join(end.devices) or NONE if end else NONE),
        ("kernel", node.kernel),
        ("driver", node.driver or NONE),
        ("Docker", node.docker.version if node.docker else NONE),
        ("memory", f"{size(node.memory.available)} of {size(node.memory.total)} free" if node.memory else NONE),
        ("disk", f"{size(disk.free)} free in {disk.path}" if disk else NONE),
    ]


def refuse_problems(found: list[Problem]) -> None:
    """Raise the first problem that a start would not survive."""
    for problem in found:
        if problem.severity == "refuse":
            raise problem.error()
