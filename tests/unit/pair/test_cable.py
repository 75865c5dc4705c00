"""The cable between two Sparks: what is found in their trees, and what is set for the servers."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from imagefactory.errors import FactoryError
from imagefactory.pair.cable import find_cable
from tests.fixtures.sparks import LAN, PORT_0, PORT_1, ROCE, WIFI, Port, cabled, spark, surroundings

Ports = dict[str, Port]
IDLE = {name: Port(up=False) for name in ROCE}


def with_both(number: int) -> Ports:
    """Return a Spark with cables in both ports, each half in a subnet of its own."""
    addresses = {name: (f"192.168.{177 + place}.{number}/24",) for place, name in enumerate(ROCE)}
    return {**{name: Port(one) for name, one in addresses.items()}, **surroundings(number)}


def changed(ports: Ports, name: str, **changes: object) -> Ports:
    return {**ports, name: replace(ports[name], **changes)}  # type: ignore[arg-type]


def by_playbook(number: int) -> Ports:
    """Return what NVIDIA's playbook sets up: one half of the port, with a link-local address."""
    ports = cabled(number, mtu=1500)
    ports = changed(ports, PORT_0[0], addresses=(f"169.254.7.{number}/16",))
    return changed(ports, PORT_0[1], addresses=())


def with_link_local(number: int) -> Ports:
    """Return what sparkrun sets up: link-local addresses beside those of each half's subnet."""
    ports = cabled(number)
    for place, name in enumerate(PORT_0):
        ports = changed(ports, name, addresses=(f"169.254.{place}.{number}/16", *ports[name].addresses))
    return ports


@dataclass
class Found:
    """What is expected: interface and RoCE devices of head and worker, or the name of the problem."""

    head: Ports
    worker: Ports
    ends: tuple[str, str] | str
    devices: tuple[str, str] = ("", "")
    shortfall: str = ""
    chosen: str = ""
    address: str = "192.168.177.1"


TWINS_0, TWINS_1 = "rocep1s0f0,roceP2p1s0f0", "rocep1s0f1,roceP2p1s0f1"
CASES = {
    "port 0": Found(cabled(1), cabled(2), (PORT_0[0], PORT_0[0]), (TWINS_0, TWINS_0)),
    "port 1": Found(cabled(1, PORT_1), cabled(2, PORT_1), (PORT_1[0], PORT_1[0]), (TWINS_1, TWINS_1)),
    "crossed": Found(cabled(1, PORT_0), cabled(2, PORT_1), (PORT_0[0], PORT_1[0]), (TWINS_0, TWINS_1)),
    "halves swapped": Found(
        *(cabled(1), cabled(2, PORT_0[::-1]), (PORT_0[0], PORT_0[1])), (TWINS_0, "roceP2p1s0f0,rocep1s0f0")
    ),
    "both cables": Found(with_both(1), with_both(2), (PORT_0[0], PORT_0[0]), (TWINS_0, TWINS_0)),
    "link-local addresses besides": Found(
        *(with_link_local(1), with_link_local(2), (PORT_0[0], PORT_0[0])), (TWINS_0, TWINS_0)
    ),
    "one RoCE device at the other end": Found(
        *(cabled(1), {PORT_0[0]: Port(("192.168.177.2/24",))}, (PORT_0[0], PORT_0[0])), ("rocep1s0f0", "rocep1s0f0")
    ),
    "as in the playbook": Found(
        *(by_playbook(1), by_playbook(2), (PORT_0[0], PORT_0[0])),
        ("rocep1s0f0", "rocep1s0f0"),
        "enP2p1s0f0np0 on spark1 shares no link and subnet with spark2",
        address="169.254.7.1",
    ),
    "one half down": Found(
        *(cabled(1), changed(cabled(2), PORT_0[1], up=False), (PORT_0[0], PORT_0[0])),
        ("rocep1s0f0", "rocep1s0f0"),
        "enP2p1s0f0np0 on spark1 shares no link and subnet with spark2",
    ),
    "first half down": Found(
        *(changed(cabled(1), PORT_0[0], up=False), cabled(2), (PORT_0[1], PORT_0[1])),
        ("roceP2p1s0f0", "roceP2p1s0f0"),
        "enp1s0f0np0 on spark1 shares no link and subnet with spark2",
        address="192.168.178.1",
    ),
    "a half without RoCE v2": Found(
        *(cabled(1), changed(cabled(2), PORT_0[1], gid_type="IB/RoCE v1"), (PORT_0[0], PORT_0[0])),
        ("rocep1s0f0", "rocep1s0f0"),
        "roceP2p1s0f0 on spark2 has no GID of RoCE v2",
    ),
    "no cable, though a network": Found(
        {**IDLE, **surroundings(1)}, {**IDLE, **surroundings(2)}, "link-down"
    ),
    "no cable, and the network chosen": Found(
        *({**IDLE, **surroundings(1)}, {**IDLE, **surroundings(2)}, (LAN, LAN)),
        shortfall="It has no RoCE device at both ends",
        chosen=LAN,
        address="10.0.0.1",
    ),
    "unplugged, and addresses kept": Found(
        cabled(1, up=False), cabled(2, up=False), "link-down"
    ),
    "other subnets": Found(
        cabled(1), changed(changed(cabled(2), PORT_0[0], addresses=("192.168.77.2/24",)), PORT_0[1], addresses=()),
        "no-common-subnet",
    ),
    "one address for both": Found(cabled(1), {**cabled(1), **surroundings(2)}, "no-common-subnet"),
    "one machine": Found(cabled(1), cabled(1), "same-machine"),
    "an older address besides": Found(  # as files of netplan add up
        *(changed(cabled(1), PORT_0[0], addresses=("10.9.0.1/24", "192.168.177.1/24")), cabled(2)),
        (PORT_0[0], PORT_0[0]),
        (TWINS_0, TWINS_0),
    ),
    "both halves in one subnet": Found(
        changed(cabled(1), PORT_0[1], addresses=("192.168.177.3/24",)),
        changed(cabled(2), PORT_0[1], addresses=("192.168.177.4/24",)),
        "twins-one-subnet",
    ),
    "two cables by the playbook": Found(
        changed(by_playbook(1), PORT_1[0], addresses=("169.254.8.1/16",), up=True),
        changed(by_playbook(2), PORT_1[0], addresses=("169.254.8.2/16",), up=True),
        "ambiguous-cable",
    ),
    "Wi-Fi alone": Found(
        {WIFI: Port(("192.168.1.1/24",))}, {WIFI: Port(("192.168.1.2/24",))}, "no-cable"
    ),
    "no RoCE device": Found(  # as in the test bed
        *({LAN: Port(("10.77.0.1/24",))}, {"eth1": Port(("10.77.0.2/24",))}, (LAN, "eth1")),
        shortfall="It has no RoCE device at both ends",
        address="10.77.0.1",
    ),
    "an interface that is not there": Found(cabled(1), cabled(2), "unknown-name", chosen="enp9"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_finds_the_cable(tmp_path: Path, case: Found) -> None:
    head, worker = spark(tmp_path, "spark1", case.head), spark(tmp_path, "spark2", case.worker)
    if isinstance(case.ends, str):
        with pytest.raises(FactoryError) as failure:
            find_cable(head, worker, case.chosen)
        assert failure.value.name == case.ends
        return
    cable = find_cable(head, worker, case.chosen)
    assert (cable.head.interface.name, cable.worker.interface.name) == case.ends
    assert cable.shortfall == case.shortfall
    for rank, (interface, devices) in enumerate(zip(case.ends, case.devices, strict=True)):
        assert cable.settings(rank) == {
            "NODES": "2",
            "NODE_RANK": str(rank),
            "HEAD_ADDRESS": case.address,
            "CABLE": interface,
            **({"NCCL_IB_HCA": devices} if devices else {}),
        }


def test_the_default_route_is_the_last_choice(tmp_path: Path) -> None:
    routed = "wlP9s9"  # what the tree's routing table names; here it has no wireless folder
    nodes = []
    for number in (1, 2):
        ports = {"xeth5": Port((f"10.1.0.{number}/24",)), routed: Port((f"10.2.0.{number}/24",))}
        node = spark(tmp_path, f"spark{number}", ports)
        wired = tuple(one.model_copy(update={"wireless": False, "speed": 1000}) for one in node.interfaces)
        assert [one.default_route for one in wired] == [True, False]
        nodes.append(node.model_copy(update={"interfaces": wired}))
    assert find_cable(nodes[0], nodes[1]).head.interface.name == "xeth5"
    alone = [node.model_copy(update={"interfaces": node.interfaces[:1]}) for node in nodes]
    assert find_cable(alone[0], alone[1]).head.interface.name == routed
