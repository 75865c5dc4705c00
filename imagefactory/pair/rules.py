"""Compares two machines with what a pair needs; the sentences and limits are in rules.yaml."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import Version

from imagefactory.errors import InputError, clean
from imagefactory.pair.cable import Cable, End, search
from imagefactory.pair.node import Node
from imagefactory.pair.problem import Problem, problem, rules
from imagefactory.store.progress import size

HEAD_PORT = 29501
UNLIMITED = -1
ENV_MANIFEST: Final = ".local/state/spark-vllm-docker/cluster-setup.json"
USUAL_ENV: Final = "spark-vllm-docker/.env"
_SETTING: Final = re.compile(r"""^[ \t]*(\w+)[ \t]*=[ \t]*(['"]?)(.*?)\2[ \t]*$""", re.MULTILINE)
_REPORTED = {"docker", "images", "driver"}  # what is unread of these has rules of its own


@dataclass(frozen=True)
class EugrEnv:
    """What the `.env` that setup-cluster.sh of eugr/spark-vllm-docker writes says about the network.

    It may hold tokens, so nothing else is kept. With different ports at the ends of the cable, ETH_IF is the management
    interface, and CLUSTER_LINKS lists the addresses on the cable.
    """

    path: Path
    interface: str
    """ETH_IF; the same on all nodes."""
    devices: frozenset[str]
    """IB_IF: RoCE devices."""
    addresses: frozenset[str]
    """CLUSTER_LINKS: those on cables; without them CLUSTER_NODES, the nodes' own."""


def find_env(home: Path) -> Path | None:
    """Return where setup-cluster.sh says that it wrote the file, or where it usually is."""
    places = [home / USUAL_ENV]
    with suppress(OSError, ValueError, TypeError, KeyError):
        places.insert(0, home / json.loads((home / ENV_MANIFEST).read_text("utf-8"))["env_file"])
    return next((place for place in places if place.is_file()), None)


def read_env(path: Path) -> EugrEnv:
    try:
        values = {name: value for name, _, value in _SETTING.findall(path.read_text("utf-8"))}
        links = json.loads(values.get("CLUSTER_LINKS") or "[]")
        addresses = {str(address) for link in links for address in link.values()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InputError(
            "bad-cluster-env",
            f"{path.name} cannot be read.",
            where=path,
            why=f"{getattr(error, 'strerror', None) or error}.",
            fix="Run eugr's `./setup-cluster.sh --save-env` again, or name another file.",
        ) from None
    devices, nodes = (set(values.get(name, "").split(",")) - {""} for name in ("IB_IF", "CLUSTER_NODES"))
    return EugrEnv(path, values.get("ETH_IF", ""), frozenset(devices), frozenset(addresses or nodes))


@dataclass(frozen=True)
class Need:
    """What a pair needs."""

    platform: str
    gpu: bool
    nccl: str | None = None
    """The version in the image's lock; None without one."""
    to_send: int = 0
    """Bytes of the image that the second machine has to store; none if it has the image."""
    port: int = 8000
    head_port: int = HEAD_PORT
    running: bool = False
    """Whether the pair is up, and so holds its ports itself."""
    interface: str = ""
    """The head's end of the cable, if the user chose it."""
    env: EugrEnv | None = None


def problems(head: Node, worker: Node, need: Need) -> list[Problem]:
    """Return all that stands in the way: what refuses a start first, and otherwise from the cable to the image."""
    cable = search(head, worker, need.interface)
    found = [cable] if isinstance(cable, Problem) else [*_of_cable(head, worker, cable, need)]
    found += _of_both(head, worker, need)
    for node in (head, worker):
        found += _of_machine(node, need)
        if isinstance(cable, Cable) and cable.head.devices:
            found += _of_rdma(node)
    disk = worker.disks["images"]
    if disk and disk.free < need.to_send:
        gaps = {"path": disk.path, "found": size(disk.free), "needed": size(need.to_send)}
        found.append(problem("disk-short", worker.host, **gaps))
    if not need.running:
        found += _of_ports(head, need)
    return sorted(found, key=lambda one: one.severity != "refuse")


def _of_cable(head: Node, worker: Node, cable: Cable, need: Need) -> Iterator[Problem]:
    both = f"{head.host} and {worker.host}"
    if not cable.head.devices:
        yield problem("plain-ethernet", both, interface=cable.head.interface.name, reason=cable.shortfall)
    elif cable.shortfall:
        yield problem("one-twin", both, reason=cable.shortfall)
    for ours, theirs in cable.links:
        if ours.mtu and theirs.mtu and ours.mtu != theirs.mtu:
            first, second = f"{ours.name} on {head.host} {ours.mtu}", f"{theirs.name} on {worker.host} {theirs.mtu}"
            yield problem("mtu-differs", both, ours=first, theirs=second)
        elif cable.head.devices and ours.mtu is not None and ours.mtu < _limit("mtu-small"):
            yield problem("mtu-small", both, interface=ours.name, mtu=ours.mtu)
    for node, end in ((head, cable.head), (worker, cable.worker)):
        if end.interface.address and end.interface.address.is_link_local:
            yield problem("link-local-address", node.host, address=end.address)
        if node.firewall:
            yield firewall(node, end, need.head_port)
    if need.env and not _agrees(need.env, cable):
        named = ", ".join(filter(None, [need.env.interface, *sorted(need.env.addresses)]))
        yield problem("other-cluster-env", str(need.env.path), theirs=named, ours=cable.head.interface)


def firewall(node: Node, end: End, head_port: int) -> Problem:
    """Return the problem of packets that do not arrive; the proof before a start finds it where the probe cannot."""
    gaps = {"firewall": node.firewall or "its rules can be read only by root", "interface": end.interface.name}
    return problem("firewall", node.host, ports=f"{head_port} and {head_port + 1}", **gaps)


def _agrees(env: EugrEnv, cable: Cable) -> bool:
    """Compare addresses if it has some: ETH_IF may be the management's where the ends are in different ports."""
    if env.devices and not env.devices >= {*cable.head.devices}:
        return False
    if env.addresses:
        return any(str(link[0].address.ip) in env.addresses for link in cable.links if link[0].address)
    return not env.interface or env.interface == cable.head.interface.name


def _of_both(head: Node, worker: Node, need: Need) -> Iterator[Problem]:
    both = f"{head.host} and {worker.host}"
    apart = abs(head.clock_error - worker.clock_error)
    if apart > _limit("clocks-apart"):
        yield problem("clocks-apart", both, seconds=f"{apart:.0f}")
    if head.driver and worker.driver and head.driver != worker.driver:
        yield problem("drivers-differ", both, ours=head.driver, theirs=worker.driver)
    old = need.nccl is not None and Version(need.nccl) < Version(str(rules()["nccl-arm64"].limit))
    if old and need.platform == "linux/arm64":
        yield problem("nccl-arm64", "the image", nccl=need.nccl)


def _of_machine(node: Node, need: Need) -> Iterator[Problem]:
    if node.platform != need.platform:
        yield problem("other-machine", node.host, found=node.platform, needed=need.platform)
    if need.gpu and node.driver is None:
        yield problem("no-driver", node.host, reason=_reason(node, "driver"))
    for subject in sorted(node.unread.keys() - _REPORTED):
        yield problem("unread", node.host, subject=subject, reason=_reason(node, subject))
    if node.docker is None:
        reason = _reason(node, "docker")
        name = "docker-not-allowed" if "permission denied" in reason.lower() else "docker-missing"
        yield problem(name, node.host, reason=reason)
    elif need.gpu and not node.docker.gpus:
        yield problem("no-gpu-runtime", node.host)


def _of_rdma(node: Node) -> Iterator[Problem]:
    """Check what only matters if RoCE devices are used."""
    if node.verbs is False:
        yield problem("no-verbs", node.host)
    if node.docker and node.docker.rootless and node.memlock != UNLIMITED:
        yield problem("memlock", node.host, found=size(node.memlock))
    held = node.memory.unpinnable if node.memory else 0
    known = node.kernel in rules()["kernel-reg-mr"].kernels and "kho=off" not in node.kernel_options
    if held or known:
        yield problem("kernel-reg-mr", node.host, kernel=node.kernel, held=size(held) if held else "memory")


def _of_ports(head: Node, need: Need) -> Iterator[Problem]:
    uses = {
        need.port: ("the server", "PORT"),
        need.head_port: ("the meeting of both servers", "HEAD_PORT"),
        need.head_port + 1: ("the link between both machines", "HEAD_PORT"),
    }
    for port, (purpose, setting) in uses.items():
        if port in (head.ports or ()):
            yield problem("port-taken", head.host, port=port, purpose=purpose, setting=setting)


def _limit(name: str) -> int:
    return int(rules()[name].limit)


def _reason(node: Node, subject: str) -> str:
    reason = clean(node.unread.get(subject, "no reason was given")).rstrip(".")
    return reason[:1].upper() + reason[1:]
