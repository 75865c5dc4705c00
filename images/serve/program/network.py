"""Reads this machine's network: interfaces with their addresses from the kernel, RoCE devices from /sys."""

import resource
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any, NamedTuple

SYS, VERBS, STATUS = "/sys", "/dev/infiniband", "/proc/self/status"
_GET_ADDRESSES, _NEW_ADDRESS, _DUMP, _LOCAL = 22, 20, 0x301, 2
"""Of rtnetlink(7): RTM_GETADDR, RTM_NEWADDR, NLM_F_REQUEST | NLM_F_DUMP, IFA_LOCAL."""
_IPC_LOCK = 1 << 14


class Interface(NamedTuple):
    """An interface with one of its IPv4 addresses."""

    name: str
    address: IPv4Interface
    mtu: int = 0
    carrier: bool = True
    """Whether something is at the other end of its cable."""


class Roce(NamedTuple):
    """A RoCE device."""

    name: str
    interface: str
    active: bool
    port: str
    """Its PCI address without the domain, by which the two links of one QSFP port are twins."""


class Network(NamedTuple):
    """What a node has to communicate with."""

    interfaces: tuple[Interface, ...]
    roce: tuple[Roce, ...] = ()
    verbs: bool = False
    """Whether programs can use RoCE devices here."""
    locks_memory: bool = False
    """Whether a process may lock any amount of memory, as RDMA does."""

    def devices(self, interface: str) -> tuple[str, ...]:
        """Return the active RoCE devices of an interface and of its twin: both are needed for all of the speed."""
        ports = {device.port for device in self.roce if device.interface == interface}
        return tuple(device.name for device in self.roce if device.port in ports and device.active)


def recorded(values: Mapping[str, Any]) -> Network:
    """Return the network of another machine, from JSON."""
    interfaces = (
        Interface(str(name), IPv4Interface(str(address)), int(more[0] if more else 0), bool(more[1:] != [False]))
        for name, address, *more in values.get("interfaces", ())
    )
    roce = (Roce(str(name), str(of), bool(active), str(port)) for name, of, active, port in values.get("roce", ()))
    verbs, locks_memory = (bool(values.get(name)) for name in ("verbs", "locks_memory"))
    return Network(tuple(interfaces), tuple(roce), verbs, locks_memory)


def read(sys: str = SYS) -> Network:
    """Read the network; without addresses if the kernel does not tell."""
    known: list[tuple[str, IPv4Interface]] = []
    with suppress(OSError):
        known += _addresses()
    interfaces = (
        Interface(name, address, _number(f"{sys}/class/net/{name}/mtu"), has_carrier(name, sys))
        for name, address in known
    )
    return Network(tuple(interfaces), tuple(_roce(sys)), any(Path(VERBS).glob("uverbs*")), _locks_memory())


def _addresses() -> Iterator[tuple[str, IPv4Interface]]:
    """Ask the kernel for all IPv4 addresses; no file lists those of an interface."""
    request = struct.pack("=IHHIIBBBBI", 24, _GET_ADDRESSES, _DUMP, 1, 0, socket.AF_INET, 0, 0, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(5)
        kernel.send(request)
        while True:
            answer = kernel.recv(65536)
            while len(answer) >= 16:  # noqa: PLR2004 - the length of a header
                length, kind = struct.unpack_from("=IH", answer)
                if kind != _NEW_ADDRESS:
                    return
                _, prefix, _, _, index = struct.unpack_from("=BBBBI", answer, 16)
                own = dict(_attributes(answer[24:length])).get(_LOCAL)
                with suppress(OSError):  # the interface may be gone
                    if own:
                        yield socket.if_indextoname(index), IPv4Interface(f"{IPv4Address(own)}/{prefix}")
                answer = answer[length + 3 & ~3 :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:  # noqa: PLR2004 - the length of a header
        length, kind = struct.unpack_from("=HH", data)
        yield kind, data[4:length]
        data = data[max(4, length + 3 & ~3) :]


def _roce(sys: str) -> Iterator[Roce]:
    for folder in sorted(Path(sys, "class", "infiniband").glob("*")):
        state = ""
        with suppress(OSError):
            state = (folder / "ports/1/state").read_text("ascii", "replace")
        for interface in sorted(path.name for path in folder.glob("device/net/*")):
            port = (folder / "device").resolve().name.partition(":")[2] or interface
            yield Roce(folder.name, interface, "ACTIVE" in state, port)


def _locks_memory() -> bool:
    with suppress(OSError, ValueError, IndexError):
        capabilities = Path(STATUS).read_text("ascii", "replace").partition("CapEff:")[2].split()[0]
        if int(capabilities, 16) & _IPC_LOCK:
            return True
    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY


def _number(path: str) -> int:
    try:
        return int(Path(path).read_text("ascii"))
    except (OSError, ValueError):
        return 0


def has_carrier(name: str, sys: str = SYS) -> bool:
    """Whether an interface has a carrier; the kernel refuses to say for one that is down."""
    path = Path(sys, "class", "net", name, "carrier")
    return not path.exists() or _number(str(path)) == 1
