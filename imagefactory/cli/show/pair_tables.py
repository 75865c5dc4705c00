"""What `pair doctor` shows: both machines side by side, and what stands in the way with its remedy."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from imagefactory.cli.show.tables import Rows, table
from imagefactory.pair.cable import Cable, End, search
from imagefactory.pair.node import Node
from imagefactory.pair.problem import Problem, Severity
from imagefactory.store.progress import size

UNKNOWN = "unknown"


def pair_examined(head: Node, worker: Node, interface: str, found: Sequence[Problem]) -> RenderableType:
    cable = search(head, worker, interface)
    ends = (cable.head, cable.worker) if isinstance(cable, Cable) else (None, None)
    facts = zip(_facts(head, ends[0]).items(), _facts(worker, ends[1]).values(), strict=True)
    rows: Rows = ((name, ours, theirs) for (name, ours), theirs in facts)
    return Group(table(rows, "", head.host, worker.host), Text(), problem_table(found))


def problem_table(found: Sequence[Problem]) -> RenderableType:
    if not found:
        return Text("Nothing stands in the way.", "green")
    states: dict[Severity, str] = {"refuse": "failed", "warn": "warning"}
    rows = ((states[one.severity], one.rule, f"{one.what} {one.why}\nNext: {one.fix}") for one in found)
    return table(rows, "", "", "")


def _facts(node: Node, end: End | None) -> dict[str, str]:
    interface = end.interface if end else None
    speed = f"{interface.speed // 1000} Gb/s" if interface and interface.speed else UNKNOWN
    return {
        "cable": str(interface) if interface else "not found",
        "link": f"{speed}, MTU {interface.mtu}" if interface else "-",
        "RoCE": ", ".join(end.devices if end else ()) or "-",
        "kernel": node.kernel,
        "driver": node.driver or UNKNOWN,
        "Docker": node.docker.version if node.docker else UNKNOWN,
        "memory": f"{size(node.memory.available)} of {size(node.memory.total)} available" if node.memory else UNKNOWN,
        **{f"disk for {name}": f"{size(disk.free)} free" if disk else UNKNOWN for name, disk in node.disks.items()},
        "clock": f"{node.clock_error:+.0f} s",
    }
