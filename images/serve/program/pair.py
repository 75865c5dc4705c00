"""One model on several machines: which interface is the cable, and what the server has to know about it.

A server that is not told advertises the address of the default route, which on a Spark is the Wi-Fi or the LAN: the
other machines then wait for ever. So each address and device is set explicitly; what the user set wins.
"""

import errno
import os
import socket
import time
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

from . import flags, keys, rules
from .command import nodes
from .errors import StartError
from .findings import FAIL, OK, WARN, Finding, Start
from .network import Interface, Network
from .settings import Settings

HEAD = 0
SHORTEST = 16
"""Characters of a secret that cannot be guessed."""
LOOKUP, PAUSE = 60.0, 2.0
"""Seconds for a name to appear, as that of a pod does some time after it, and between two questions."""


class Node(NamedTuple):
    """This machine as one of several."""

    rank: int
    total: int
    head: str
    """The head's address on the cable."""
    port: int
    """Where torch's store listens on the head; the companions meet on the next."""
    interface: Interface
    devices: tuple[str, ...]
    routed: bool
    """Whether the others may be in another network, as pods are."""

    @property
    def address(self) -> str:
        return str(self.interface.address.ip)

    @property
    def link(self) -> tuple[str, int]:
        return self.head, self.port + 1

    def environment(self, address_variable: str) -> dict[str, str]:
        """Return the variables of the server; other nodes have other values."""
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


def look_up(settings: Settings, *, patient: bool) -> None:
    """Replace a name in HEAD_ADDRESS by its address: some servers bind to what they are told."""
    head, until = settings.text("HEAD_ADDRESS"), time.monotonic() + (LOOKUP if patient else 0)
    if nodes(settings) == 1 or not head:
        return
    while True:
        try:
            settings.values["HEAD_ADDRESS"] = socket.getaddrinfo(head, None, socket.AF_INET)[0][4][0]
        except (OSError, ValueError):
            if time.monotonic() >= until:
                what = f"{head!r} is neither an IPv4 address nor a name of one that is known here"
                raise _refused(settings, "HEAD_ADDRESS", "bad-value", what) from None
            time.sleep(PAUSE)
        else:
            return


def find(settings: Settings, here: Network) -> Node:
    """Find the cable; refuse an address that no interface has."""
    head, rank, chosen = settings.text("HEAD_ADDRESS"), settings.number("NODE_RANK") or HEAD, settings.text("CABLE")
    wanted, routed = IPv4Address(head), bool(chosen and settings.text(keys.PAIR_FILE))
    known = [interface for interface in here.interfaces if chosen in {"", interface.name}]
    if not known:
        raise _refused(settings, "CABLE", "pair", f"there is no interface {chosen!r} with an IPv4 address here")
    own = [interface for interface in known if interface.address.ip == wanted]
    if rank == HEAD and not own:
        raise _refused(settings, "HEAD_ADDRESS", "pair", f"no interface has {head}: {_listed(here)}")
    if rank != HEAD and own:
        what = f"{head} is this machine's own address ({own[0].name}), but NODE_RANK={rank} is not the head"
        raise _refused(settings, "HEAD_ADDRESS", "pair", what)
    found = own or [interface for interface in known if wanted in interface.address.network]
    if not found and routed:
        found = known
    if not found:
        which = f"{chosen} is not" if chosen else "no interface is"
        what = f"{which} in one network with {head}: {_listed(here)}"
        raise _refused(settings, "CABLE" if chosen else "HEAD_ADDRESS", "pair", what)
    if len({interface.name for interface in found}) > 1:
        names = " and ".join(interface.name for interface in found)
        what = f"{names} are both in the network of {head}: packets would take either"
        raise _refused(settings, "CABLE", "pair", what)
    port = settings.number("HEAD_PORT") or 29501
    return Node(rank, nodes(settings), head, port, found[0], here.devices(found[0].name), routed)


def _refused(settings: Settings, setting: str, name: str, what: str) -> StartError:
    allowed, remedy = {
        "HEAD_ADDRESS": (
            "the head's IPv4 address on the cable, or its name",
            "Set HEAD_ADDRESS to what `ip -4 addr` shows for the cable on the head, and start with --network host.",
        ),
        "CABLE": (
            "the interface of the cable, such as enp1s0f0np0",
            "Name the cable's interface in CABLE; nodes in different networks also need PAIR_SECRET_FILE.",
        ),
    }[setting]
    return StartError(name, what, setting, settings.text(setting), allowed, remedy=remedy)


def _listed(here: Network) -> str:
    others = [f"{name} has {address}" for name, address, *_ in here.interfaces if not address.is_loopback]
    return ", ".join(others) or "there is none beside the loopback"


def check(start: Start) -> Iterator[Finding]:
    if nodes(start.settings) == 1:
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
        yield Finding("pair", OK, f"node {node.rank} of {node.total} on {place}; the head is {node.head}")


def _ports(node: Node) -> Iterator[Finding]:
    for port in (node.port, node.port + 1) if node.rank == HEAD else ():
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((node.head, port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            detail = f"port {port} of {node.head} is in use" if taken else f"cannot listen there: {error.strerror}"
            remedy = "End what uses it, or set HEAD_PORT to another on all nodes; that port and the next must be free."
            yield Finding("pair", FAIL, detail, "HEAD_PORT", str(node.port), "a free port, followed by another", remedy)


def _secret(settings: Settings) -> Iterator[Finding]:
    try:
        secret = keys.pair_secret(settings.text(keys.PAIR_FILE))
    except StartError as error:
        yield Finding("pair", FAIL, error.what, error.setting, error.value, error.allowed, error.remedy)
        return
    if len(secret) < SHORTEST:
        detail = "the secret of the nodes is short" if secret else "any machine on the cable can pose as another node"
        remedy = f"Mount one file with `openssl rand -hex 32` on all nodes, and name it in {keys.PAIR_FILE}."
        yield Finding("pair", WARN, detail, keys.PAIR_FILE, remedy=remedy)


def nccl_version() -> str:
    package = flags.find_package("nvidia") or ""
    found = sorted(Path(package).parent.glob("nvidia_nccl_cu*.dist-info")) if package else []
    return found[-1].name.split("-")[1].removesuffix(".dist") if found else ""
