"""What stands in the way of a pair: each rule applies where it should, and nowhere else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from rich.console import Console

from imagefactory.cli.show.tables import pair_examined, problem_table
from imagefactory.errors import InputError
from imagefactory.pair.cable import find_cable
from imagefactory.pair.node import Node
from imagefactory.pair.problem import rules
from imagefactory.pair.rules import ENV_MANIFEST, EugrEnv, Need, find_env, firewall, problems, read_env
from imagefactory.pair.up import NCCL
from imagefactory.project.cells import known_faults
from imagefactory.project.project import Project, locked_cells
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.sparks import HEALTHY, LAN, NOW, PORT_0, Port, cabled, spark
from tests.unit.pair.test_cable import CASES as CABLES

NEED = Need("linux/arm64", gpu=True, nccl="2.29.7")
ADDRESSES = frozenset({"192.168.177.1", "192.168.177.2"})
ENV = EugrEnv(Path(".env"), PORT_0[0], frozenset({"rocep1s0f0", "roceP2p1s0f0"}), ADDRESSES)
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


def memory(**changes: int) -> dict[str, int]:
    return {"total": 128 * GB, "available": 120 * GB, "unpinnable": 0, **changes}


CASES = {
    "healthy": Case(),
    "healthy with their .env": Case(need=replace(NEED, env=ENV)),
    "healthy, and running": Case(need=replace(NEED, running=True), head={"ports": [8000]}),
    "unplugged": Case("link-down", ports=cabled(2, up=False)),
    "one half": Case("one-twin", ports=small(PORT_0[1], addresses=())),
    "plain Ethernet": Case("plain-ethernet", ports={LAN: Port(("10.0.0.2/24",))}),
    "MTU of one end": Case("mtu-differs", ports=small(PORT_0[0], mtu=1500)),
    "MTU of a twin's end": Case("mtu-differs", ports=small(PORT_0[1], mtu=1500)),
    "no verbs": Case("no-verbs", verbs=False),
    "ufw": Case("firewall", firewall="ufw"),
    "their .env, other port": Case(
        "other-cluster-env", need=replace(NEED, env=replace(ENV, addresses=frozenset({"10.1.1.1"})))
    ),
    "their .env, other devices": Case(
        "other-cluster-env", need=replace(NEED, env=replace(ENV, devices=frozenset({"rocep1s0f1", "roceP2p1s0f1"})))
    ),
    "their .env, crossed ports": Case(
        need=replace(NEED, env=replace(ENV, interface=LAN, addresses=frozenset({"192.168.177.1"})))
    ),
    "their .env, interface alone": Case(
        "other-cluster-env", need=replace(NEED, env=replace(ENV, addresses=frozenset(), interface="enp1s0f1np1"))
    ),
    "amd64": Case("other-machine", machine="x86_64"),
    "kernel by name": Case("kernel-reg-mr", kernel="7.0.0-1019-nvidia"),
    "kernel by name, handover off": Case(kernel="7.0.0-1019-nvidia", kernel_options=["quiet", "kho=off"]),
    "kernel by its memory": Case("kernel-reg-mr", kernel="7.0.0-31-generic", memory=memory(unpinnable=9 * GB)),
    "clock": Case("clocks-apart", clock=NOW - 3600),
    "clock within bounds": Case(clock=NOW - 59),
    "image too large": Case("disk-short", need=replace(NEED, to_send=1000 * GB)),
    "image with room": Case(need=replace(NEED, to_send=400 * GB)),
    "server's port": Case("port-taken", head={"ports": [8000]}),
    "meeting port": Case("port-taken", head={"ports": [29501]}),
    "link's port": Case("port-taken", head={"ports": [29502]}),
    "drivers": Case("drivers-differ", driver="595.84"),
    "no GPU": Case("no-driver", driver=None, unread={"driver": "nvidia-smi shows no GPU"}),
    "no GPU needed": Case(need=replace(NEED, gpu=False), driver=None, unread={"driver": "there is no nvidia-smi"}),
    "memory unread": Case("unread", memory=None, unread={"memory": "'MemTotal'"}),
    "no Docker": Case("docker-missing", docker=None, unread={"docker": "there is no docker on PATH"}),
    "no right to Docker": Case("docker-not-allowed", docker=None, unread={"docker": "Permission denied: the socket."}),
    "no toolkit": Case("no-gpu-runtime", docker={**HEALTHY["docker"], "gpus": False}),
    "locked memory": Case("memlock", docker={**HEALTHY["docker"], "rootless": True}, memlock=8 << 20),
    "locked memory without limit": Case(docker={**HEALTHY["docker"], "rootless": True}),
    "old NCCL": Case("nccl-arm64", need=replace(NEED, nccl="2.28.9")),
    "old NCCL on amd64": Case(
        "other-machine", "other-machine", need=replace(NEED, nccl="2.28.9", platform="linux/amd64")
    ),
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
    assert [one.rule for one in found] == ["one-twin", "mtu-small", "link-local-address", "link-local-address"]


def test_every_rule_is_tried() -> None:
    elsewhere = {"mtu-small", "link-local-address"}  # above
    elsewhere |= {case.ends for case in CABLES.values() if isinstance(case.ends, str)} - {"unknown-name"}
    assert {name for case in CASES.values() for name in case.expected} | elsewhere == set(rules())


def test_refusals_come_first(tmp_path: Path) -> None:
    case = Case(driver="595.84", verbs=False, clock=NOW + 61)
    head, worker = case.nodes(tmp_path)
    assert [one.severity for one in problems(head, worker, NEED)] == ["refuse", "refuse", "warn"]


def test_the_firewall_has_its_sentence_though_nothing_shows_it(tmp_path: Path) -> None:
    head, worker = Case().nodes(tmp_path)
    said = firewall(worker, find_cable(head, worker).worker, 29501)
    assert "29501 and 29502" in said.why
    assert "ufw allow in on enp1s0f0np0" in said.fix


def shown(what: Any) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_the_doctor_shows_both_and_the_remedies(tmp_path: Path) -> None:
    head, worker = Case(kernel="7.0.0-1019-nvidia").nodes(tmp_path)
    text = shown(pair_examined(head, worker, "", problems(head, worker, NEED)))
    for part in (
        "spark1",
        "enp1s0f0np0 (192.168.177.2/24)",
        "200 Gb/s, MTU 9000",
        "rocep1s0f0, roceP2p1s0f0",
        "kho=off",
    ):
        assert part in text
    unplugged = Case(ports=cabled(2, up=False)).nodes(tmp_path / "unplugged")
    assert "not found" in shown(pair_examined(*unplugged, "", []))
    assert shown(problem_table([])) == "Nothing stands in the way.\n"


def test_versions_with_the_nccl_that_hangs_have_it_as_a_known_fault() -> None:
    project = Project(REPOSITORY)
    limit = Version(str(rules()["nccl-arm64"].limit))
    for cell in locked_cells(project):
        wheels = project.wheel_lock(cell).wheels if cell.arch == "gb10" else ()
        old = any(wheel.name.startswith(NCCL) and Version(wheel.version) < limit for wheel in wheels)
        assert any("NCCL" in fault for fault in known_faults(project.matrix, cell)) == old, cell


DIRECT = """# mine
CONTAINER_HF_TOKEN="secret"
CONTAINER_NAME='vllm_node'

# Cluster configuration generated by setup-cluster.sh
CLUSTER_NODES=10.20.0.11,10.20.0.12
COPY_HOSTS=10.20.0.12
LOCAL_IP=10.20.0.11
ETH_IF=enp1s0f1np1
IB_IF=rocep1s0f1,roceP2p1s0f1
"""
CROSSED = """CLUSTER_NODES=192.0.2.11,192.0.2.12
ETH_IF=enP7s7
IB_IF=rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1
CLUSTER_LINKS='[{"192.0.2.11":"10.20.0.11","192.0.2.12":"10.20.0.12"}]'
"""


def test_reads_what_describes_the_network(tmp_path: Path) -> None:
    path = tmp_path / "spark-vllm-docker/.env"
    assert find_env(tmp_path) is None
    path.parent.mkdir()
    path.write_text(DIRECT, "utf-8")
    assert find_env(tmp_path) == path
    nodes = frozenset({"10.20.0.11", "10.20.0.12"})
    assert read_env(path) == EugrEnv(path, "enp1s0f1np1", frozenset({"rocep1s0f1", "roceP2p1s0f1"}), nodes)
    path.write_text(CROSSED, "utf-8")
    assert (read_env(path).addresses, read_env(path).interface) == (nodes, "enP7s7")


@pytest.mark.parametrize(("manifest", "found"), [('{"env_file": "cluster.env"}', "cluster.env"), ("{}", ""), ("[", "")])
def test_asks_the_manifest_where_it_is(tmp_path: Path, manifest: str, found: str) -> None:
    (tmp_path / "cluster.env").touch()
    (tmp_path / ENV_MANIFEST).parent.mkdir(parents=True)
    (tmp_path / ENV_MANIFEST).write_text(manifest, "utf-8")
    assert find_env(tmp_path) == (tmp_path / found if found else None)


@pytest.mark.parametrize("text", ["CLUSTER_LINKS=[", "CLUSTER_LINKS=[1]", "CLUSTER_LINKS=7", b"\xff=1"])
def test_refuses_what_it_cannot_read(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / ".env"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError, match="cannot be read"):
        read_env(path)
