"""The cable between two machines: which interface of each is an end of it, and which RoCE devices use it."""

from collections.abc import Iterator
from dataclasses import dataclass

from imagefactory.errors import unknown_name
from imagefactory.pair.node import ROCE_V2, Interface, Node, Roce
from imagefactory.pair.problem import Problem, problem

Link = tuple[Interface, Interface]
"""An interface of the head and one of the worker, each with its address in the subnet that they share."""


@dataclass(frozen=True)
class End:
    """One end of the cable."""

    interface: Interface
    devices: tuple[str, ...]
    """The RoCE devices to use: both twins of a QSFP port, or none on plain Ethernet."""

    @property
    def address(self) -> str:
        return str(self.interface.address.ip) if self.interface.address else ""


@dataclass(frozen=True)
class Cable:
    """A connection between the machines."""

    head: End
    worker: End
    shortfall: str
    """Why not all RoCE devices of the port are used; empty if they are."""

    def settings(self, rank: int) -> dict[str, str]:
        """Return the image's settings for the head (rank 0) or the worker (rank 1)."""
        end = (self.head, self.worker)[rank]
        return {
            "NODES": "2",
            "NODE_RANK": str(rank),
            "HEAD_ADDRESS": self.head.address,
            "CABLE": end.interface.name,
            **({"NCCL_IB_HCA": ",".join(end.devices)} if end.devices else {}),
        }


def find_cable(head: Node, worker: Node, interface: str = "") -> Cable:
    """Return the cable, at the head's named interface if the user chose one, or raise what is wrong with it."""
    outcome = search(head, worker, interface)
    if isinstance(outcome, Problem):
        raise outcome.error()
    return outcome


def search(head: Node, worker: Node, interface: str = "") -> Cable | Problem:
    """Return the cable, or what is wrong with it.

    Where both machines have RoCE devices, only a chosen interface may be another one: a slow network must not stand
    in unnoticed for a cable that is unplugged or has no address.
    """
    nodes = head, worker
    if head.addresses and head.addresses == worker.addresses:
        return problem("same-machine", worker.host, head=head.host)
    if interface:
        chosen = head.interface(interface)
        if chosen is None:
            names = [candidate.name for candidate in head.interfaces]
            raise unknown_name(f"interface of {head.host}", interface, names, "the --cable option")
        pools = [chosen], [candidate for candidate in worker.interfaces if not candidate.bridge]
    elif all(any(_ports(node)) for node in nodes):
        pools = list(_ports(head)), list(_ports(worker))
    else:
        pools = list(filter(_wired, head.interfaces)), list(filter(_wired, worker.interfaces))

    links = [link for ours in pools[0] for theirs in pools[1] if (link := _link(ours, theirs))]
    live = sorted((link for link in links if all(end.up for end in link)), key=_preference)
    if not live:
        return _why_none(nodes, pools, links)
    best = live[0]
    # A twin's link shares no end with the best one. A link that shares one end leaves open which the cable is.
    rivals = [link for link in live if (link[0].name == best[0].name) != (link[1].name == best[1].name)]
    if rivals:
        return _why_unclear(nodes, best, rivals[0])
    return _cable(nodes, best, live)


def _ports(node: Node) -> Iterator[Interface]:
    """Iterate over the interfaces of RoCE devices."""
    yield from filter(None, (node.interface(device.interface) for device in node.roce))


def _wired(interface: Interface) -> bool:
    return not interface.bridge and not interface.wireless


def _link(ours: Interface, theirs: Interface) -> Link | None:
    """Return the interfaces with the addresses by which they reach each other."""
    for address in ours.own_addresses:
        for peer in theirs.own_addresses:
            # Each must be in the other's network, whose prefix may differ; two ends with one address cannot talk.
            if address.ip != peer.ip and address.ip in peer.network and peer.ip in address.network:
                head, worker = {"addresses": (address,)}, {"addresses": (peer,)}
                return ours.model_copy(update=head), theirs.model_copy(update=worker)
    return None


def _preference(link: Link) -> tuple[bool, int, str]:
    """Sort what leads to other networks last, then by speed; of twins, enp1s0f0np0 is before enP2p1s0f0np0."""
    speed = min(end.speed or 0 for end in link)
    return any(end.default_route for end in link), -speed, link[0].name.lower()


def _why_none(nodes: tuple[Node, Node], pools: tuple[list[Interface], list[Interface]], links: list[Link]) -> Problem:
    for node, pool, end in zip(nodes, pools, (0, 1), strict=True):
        if not pool:
            return problem("no-cable", node.host)
        dead_pool = [] if any(interface.up for interface in pool) else pool
        down = [link[end] for link in links if not link[end].up] or dead_pool
        if down:
            return problem("link-down", node.host, interfaces=_listed(down))
    ours, theirs = (_listed([interface for interface in pool if interface.up]) for pool in pools)
    hosts = " and ".join(node.host for node in nodes)
    return problem("no-common-subnet", hosts, ours=ours, theirs=theirs, head=nodes[0].host, worker=nodes[1].host)


def _why_unclear(nodes: tuple[Node, Node], best: Link, rival: Link) -> Problem:
    end = 0 if rival[0].name != best[0].name else 1
    node, pair = nodes[end], [best[end], rival[end]]
    twins = [device.interface for device in node.port(best[end])]
    name = "twins-one-subnet" if rival[end].name in twins else "ambiguous-cable"
    return problem(name, node.host, interfaces=_listed(pair), network=pair[0].address and pair[0].address.network)


def _listed(interfaces: list[Interface]) -> str:
    return ", ".join(map(str, sorted(interfaces, key=lambda interface: interface.name.lower())))


def _cable(nodes: tuple[Node, Node], best: Link, live: list[Link]) -> Cable:
    """Pair the RoCE devices at both ends by their interfaces' subnets."""
    ports = tuple(node.port(interface) for node, interface in zip(nodes, best, strict=True))
    devices: list[tuple[Roce, Roce]] = []
    shortfall = "" if all(ports) else "It has no RoCE device at both ends"
    for ours in ports[0]:
        link = best if ours.interface == best[0].name else _link_of(ours, ports[1], live)
        if link is None:
            if len(ports[1]) > 1:
                shortfall = f"{ours.interface} on {nodes[0].host} shares no link and subnet with {nodes[1].host}"
            continue
        theirs = next((device for device in ports[1] if device.interface == link[1].name), None)
        if theirs is None:
            continue
        if reason := _unusable(nodes[0], ours) or _unusable(nodes[1], theirs):
            shortfall = reason
        else:
            devices.append((ours, theirs))
    head, worker = (tuple(pair[end].name for pair in devices) for end in (0, 1))
    return Cable(End(best[0], head), End(best[1], worker), shortfall)


def _link_of(twin: Roce, others: list[Roce], live: list[Link]) -> Link | None:
    names = {device.interface for device in others}
    return next((link for link in live if link[0].name == twin.interface and link[1].name in names), None)


def _unusable(node: Node, device: Roce) -> str:
    if not device.active:
        return f"{device.name} on {node.host} is not active"
    return "" if ROCE_V2 in device.gid_types else f"{device.name} on {node.host} has no GID of {ROCE_V2}"
