"""One model on two machines: which interface is the cable, and what the server has to know about it.

A server that is not told advertises the address of the default route, which on a Spark is the Wi-Fi or the LAN: the
other machine then waits for ever. So each address and device is set explicitly; what the user set wins.
"""

import errno
import os
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

from . import flags, keys, rules
from .command import paired
from .errors import StartError
from .findings import FAIL, OK, WARN, Finding, Start
from .network import Interface, Network
from .settings import Settings

HEAD = 0
SHORTEST = 16
"""Characters of a secret that cannot be guessed."""


class Node(NamedTuple):
    """This machine as one of two."""

    rank: int
    head: str
    """The head's address on the cable."""
    port: int
    """Where torch's store listens on the head; the companions meet on the next."""
    interface: Interface
    devices: tuple[str, ...]

    @property
    def address(self) -> str:
        return str(self.interface.address.ip)

    @property
    def link(self) -> tuple[str, int]:
        return self.head, self.port + 1

    def environment(self, address_variable: str) -> dict[str, str]:
        """Return the variables of the server; the other node has other values."""
        name = self.interface.name
        found = {
            address_variable: self.address,
            "NCCL_SOCKET_IFNAME": name,
            "GLOO_SOCKET_IFNAME": name,
            "TP_SOCKET_IFNAME": name,
            "NCCL_IGNORE_CPU_AFFINITY": "1",
        }
        if self.devices:
            # The index of a GID changes with a reboot of the other machine: NCCL looks for it by its kind.
            found |= {
                "NCCL_IB_HCA": ",".join(self.devices),
                "NCCL_IB_ROCE_VERSION_NUM": "2",
                "NCCL_IB_ADDR_FAMILY": "AF_INET",
            }
        return {variable: value for variable, value in found.items() if variable not in os.environ}


def find(settings: Settings, here: Network) -> Node:
    """Find the cable; refuse an address that no interface has."""
    head, rank, chosen = settings.text("HEAD_ADDRESS"), settings.number("NODE_RANK") or HEAD, settings.text("CABLE")
    try:
        wanted = IPv4Address(head)
    except ValueError:
        raise _refused(settings, "HEAD_ADDRESS", "bad-value", f"{head!r} is not an IPv4 address") from None
    known = [interface for interface in here.interfaces if chosen in {"", interface.name}]
    if not known:
        raise _refused(settings, "CABLE", "pair", f"there is no interface {chosen!r} with an IPv4 address here")
    own = [interface for interface in known if interface.address.ip == wanted]
    if rank == HEAD and not own:
        raise _refused(settings, "HEAD_ADDRESS", "pair", f"no interface has {head}: {_listed(here)}")
    if rank != HEAD and own:
        what = f"{head} is this machine's own address ({own[0].name}), but NODE_RANK={rank} is the other one"
        raise _refused(settings, "HEAD_ADDRESS", "pair", what)
    found = own or [interface for interface in known if wanted in interface.address.network]
    if not found:
        which = f"{chosen} is not" if chosen else "no interface is"
        what = f"{which} in one network with {head}: {_listed(here)}"
        raise _refused(settings, "CABLE" if chosen else "HEAD_ADDRESS", "pair", what)
    if len({interface.name for interface in found}) > 1:
        names = " and ".join(interface.name for interface in found)
        what = f"{names} are both in the network of {head}: packets would take either"
        raise _refused(settings, "CABLE", "pair", what)
    port = settings.number("HEAD_PORT") or 29501
    return Node(rank, head, port, found[0], here.devices(found[0].name))


def _refused(settings: Settings, setting: str, name: str, what: str) -> StartError:
    allowed, remedy = {
        "HEAD_ADDRESS": (
            "the head's IPv4 address on the cable",
            "Set HEAD_ADDRESS to what `ip -4 addr` shows for the cable on the head, and start with --network host.",
        ),
        "CABLE": (
            "the interface of the cable, such as enp1s0f0np0",
            "Name the cable's interface in CABLE; give the two links of a port different networks.",
        ),
    }[setting]
    return StartError(name, what, setting, settings.text(setting), allowed, remedy=remedy)


def _listed(here: Network) -> str:
    others = [f"{name} has {address}" for name, address, *_ in here.interfaces if not address.is_loopback]
    return ", ".join(others) or "there is none beside the loopback"


def check(start: Start) -> Iterator[Finding]:
    if not paired(start.settings):
        yield Finding("pair", OK, "one machine")
        return
    here = start.readings.network
    try:
        node = find(start.settings, here)
    except StartError as error:
        yield Finding("pair", FAIL, error.what, error.setting, error.value, error.allowed, error.remedy)
        return
    values = {
        "gpu": start.on_gpu,
        "machine": os.uname().machine,
        "nccl": nccl_version(),
        "interface": node.interface.name,
        "mtu": node.interface.mtu,
        "carrier": node.interface.carrier,
        "devices": ",".join(node.devices),
        "roce": any(device.interface == node.interface.name for device in here.roce),
        "verbs": here.verbs,
        "locks_memory": here.locks_memory,
    }
    facts = rules.Facts(values, (), start.image.at_least)
    found = [Finding("pair", **rule) for rule in rules.matching(rules.common()["pair"], facts)]
    yield from found
    yield from _ports(node)
    yield from _secret(start.settings)
    if not any(finding.result == FAIL for finding in found):
        by = f", RoCE by {' and '.join(node.devices)}" if node.devices else ""
        place = f"{node.interface.name} ({node.interface.address}, MTU {node.interface.mtu}){by}"
        yield Finding("pair", OK, f"node {node.rank} of 2 on {place}; the head is {node.head}")


def _ports(node: Node) -> Iterator[Finding]:
    for port in (node.port, node.port + 1) if node.rank == HEAD else ():
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((node.head, port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            detail = f"port {port} of {node.head} is in use" if taken else f"cannot listen there: {error.strerror}"
            remedy = "End what uses it, or set HEAD_PORT to another on both nodes; that port and the next must be free."
            yield Finding("pair", FAIL, detail, "HEAD_PORT", str(node.port), "a free port, followed by another", remedy)


def _secret(settings: Settings) -> Iterator[Finding]:
    try:
        secret = keys.pair_secret(settings.text(keys.PAIR_FILE))
    except StartError as error:
        yield Finding("pair", FAIL, error.what, error.setting, error.value, error.allowed, error.remedy)
        return
    if len(secret) < SHORTEST:
        detail = "the secret of the pair is short" if secret else "any machine on the cable can pose as the other node"
        remedy = f"Mount one file with `openssl rand -hex 32` on both, and name it in {keys.PAIR_FILE}."
        yield Finding("pair", WARN, detail, keys.PAIR_FILE, remedy=remedy)


def nccl_version() -> str:
    package = flags.find_package("nvidia") or ""
    found = sorted(Path(package).parent.glob("nvidia_nccl_cu*.dist-info")) if package else []
    return found[-1].name.split("-")[1].removesuffix(".dist") if found else ""
