"""What stands in the way of a pair: each rule applies where it should, and nowhere else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from imagefactory.cli.show.tables import pair_examined, problem_table
from imagefactory.pair.node import Node
from imagefactory.pair.problem import rules
from imagefactory.pair.rules import Need, problems
from tests.fixtures.sparks import HEALTHY, LAN, PORT_0, Port, cabled, spark
from tests.unit.pair.test_cable import CASES as CABLES

NEED = Need("linux/arm64", gpu=True)
GB = 10**9


class Case:
    """A pair with a fault: ports and facts of the worker, or what is needed."""

    def __init__(self, *expected: str, need: Need = NEED, head: Any = None, ports: Any = None, **facts: Any) -> None:
        self.expected, self.need, self.head, self.ports, self.facts = expected, need, head or {}, ports, facts

    def nodes(self, root: Path) -> tuple[Node, Node]:
        own = cabled(1) if self.ports is None or PORT_0[0] in self.ports else {LAN: Port(("10.0.0.1/24",))}
        head = spark(root, "spark1", own, **self.head)
        return head, spark(root, "spark2", self.ports or cabled(2), **self.facts)


def small(name: str, **changes: Any) -> dict[str, Port]:
    ports = cabled(2)
    return {**ports, name: replace(ports[name], **changes)}


CASES = {
    "healthy": Case(),
    "unplugged": Case("link-down", ports=cabled(2, up=False)),
    "one half": Case("one-twin", ports=small(PORT_0[1], addresses=())),
    "plain Ethernet": Case("plain-ethernet", ports={LAN: Port(("10.0.0.2/24",))}),
    "amd64": Case("other-machine", machine="x86_64"),
    "image too large": Case("disk-short", need=replace(NEED, image=1000 * GB)),
    "weights too large": Case("disk-short", need=replace(NEED, weights=1000 * GB)),
    "both with room": Case(need=replace(NEED, image=40 * GB, weights=400 * GB)),
    "disks unread": Case(disks={}, need=replace(NEED, image=40 * GB, weights=400 * GB)),
    "no rsync": Case("no-rsync", need=replace(NEED, weights=0), rsync=False),
    "no rsync, and nothing to copy": Case(rsync=False),
    "drivers": Case("drivers-differ", driver="595.84"),
    "no GPU": Case("no-driver", driver=None, unread={"driver": "nvidia-smi shows no GPU"}),
    "no GPU needed": Case(need=replace(NEED, gpu=False), driver=None, unread={"driver": "there is no nvidia-smi"}),
    "routes unread": Case("unread", unread={"routes": "[Errno 2]"}),
    "no Docker": Case("docker-missing", docker=None, unread={"docker": "there is no docker on PATH"}),
    "no right to Docker": Case("docker-not-allowed", docker=None, unread={"docker": "Permission denied: the socket."}),
    "no toolkit": Case("no-gpu-runtime", docker={**HEALTHY["docker"], "gpus": False}),
    "an image for amd64": Case("other-machine", "other-machine", need=replace(NEED, platform="linux/amd64")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_fault_is_found_and_nothing_else(tmp_path: Path, case: Case) -> None:
    head, worker = case.nodes(tmp_path)
    found = problems(head, worker, case.need)
    assert [one.rule for one in found] == list(case.expected)
    for one in found:
        assert "None" not in f"{one.what} {one.why} {one.fix}", one
        assert one.error().name == one.rule


def link_local(number: int) -> dict[str, Port]:
    ports = cabled(number, mtu=1500)
    return {**ports, PORT_0[0]: Port((f"169.254.7.{number}/16",), mtu=1500), PORT_0[1]: Port()}


def test_the_playbook_works_with_warnings(tmp_path: Path) -> None:
    nodes = [spark(tmp_path, f"spark{number}", link_local(number)) for number in (1, 2)]
    found = problems(nodes[0], nodes[1], NEED)
    assert {one.severity for one in found} == {"warn"}
    assert [one.rule for one in found] == ["one-twin", "link-local-address", "link-local-address"]


def test_every_rule_is_tried() -> None:
    elsewhere = {"link-local-address"}  # above
    elsewhere |= {case.ends for case in CABLES.values() if isinstance(case.ends, str)} - {"unknown-name"}
    assert {name for case in CASES.values() for name in case.expected} | elsewhere == set(rules())


def test_refusals_come_first(tmp_path: Path) -> None:
    case = Case(driver="595.84", docker=None, machine="x86_64")
    head, worker = case.nodes(tmp_path)
    assert [one.severity for one in problems(head, worker, NEED)] == ["refuse", "refuse", "warn"]


def shown(what: Any) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_the_doctor_shows_both_and_the_remedies(tmp_path: Path) -> None:
    head, worker = Case(docker={**HEALTHY["docker"], "gpus": False}).nodes(tmp_path)
    text = shown(pair_examined(head, worker, "", problems(head, worker, NEED)))
    for part in (
        "spark1",
        "enp1s0f0np0 (192.168.177.2/24)",
        "200 Gb/s, MTU 9000",
        "rocep1s0f0, roceP2p1s0f0",
        "nvidia-ctk runtime configure",
    ):
        assert part in text
    unplugged = Case(ports=cabled(2, up=False)).nodes(tmp_path / "unplugged")
    assert "not found" in shown(pair_examined(*unplugged, "", []))
    assert shown(problem_table([])) == "Nothing stands in the way.\n"
