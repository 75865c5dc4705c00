"""One of the two machines, as probe_node.py describes it."""

import ipaddress
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, ValidationError

from imagefactory.errors import MachineError, clean
from imagefactory.project.locks.files import Frozen
from imagefactory.project.wording import first_problem

PROBE: Final = Path(__file__).with_name("probe_node.py")
"""The program that describes a machine; it runs alone, from standard input."""
ROCE_V2: Final = "RoCE v2"
_PLATFORMS: Final = {"aarch64": "linux/arm64", "x86_64": "linux/amd64"}


class Interface(Frozen):
    """A network interface."""

    name: str
    addresses: tuple[Annotated[ipaddress.IPv4Interface, BeforeValidator(str)], ...]  # a number is none
    mtu: int | None
    up: bool
    """Whether there is a link: a cable with a machine at its other end that is switched on."""
    speed: int | None
    """In Mb/s."""
    wireless: bool
    bridge: bool
    default_route: bool

    @property
    def own_addresses(self) -> tuple[ipaddress.IPv4Interface, ...]:
        """The addresses that somebody gave it, or link-local ones if nobody did."""
        return tuple(address for address in self.addresses if not address.is_link_local) or self.addresses

    @property
    def address(self) -> ipaddress.IPv4Interface | None:
        return next(iter(self.own_addresses), None)

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.own_addresses)) or 'no address'})"


class Roce(Frozen):
    """An RDMA device over Ethernet."""

    name: str
    active: bool
    interface: str | None
    slot: str | None
    """Bus, device and function: twins, the two halves of a QSFP port, differ only in the domain before it."""
    gid_types: tuple[str, ...]


class Disk(Frozen):
    """Where a folder is, or will be made."""

    path: str
    free: int


class Docker(Frozen):
    """A Docker daemon."""

    version: str
    root: str
    gpus: bool
    """Whether it can hand GPUs to containers."""


class Node(Frozen):
    """What is known about a machine; None where it could not be read, and `unread` says why."""

    host: str
    machine: str
    home: str
    interfaces: tuple[Interface, ...]
    roce: tuple[Roce, ...]
    verbs: bool | None
    """Whether programs can reach the RDMA devices, through /dev/infiniband."""
    driver: str | None
    docker: Docker | None
    rsync: bool
    snapshots: dict[str, dict[str, int]]
    """The files of models in huggingface_hub's cache, by folder: their sizes by path."""
    disks: dict[str, Disk | None]
    """The places of images and of weights, which need room."""
    unread: dict[str, str]

    @classmethod
    def read(cls, answer: str, name: str) -> Self:
        """Read the last line of what the probe printed; `name` is how the user calls the machine, if at all."""
        lines = answer.strip().splitlines() or [""]  # a shell's start-up files may print before it
        try:
            node = cls.model_validate_json(lines[-1])
        except ValidationError as error:
            raise MachineError(
                "no-probe",
                f"{name or 'This machine'} returned no usable description.",
                where=name or "this machine",
                why=f"{first_problem(error)}; it printed: {clean(lines[-1])[:200]!r}",
                fix="Check that `python3 --version` there prints 3.8 or newer.",
            ) from None
        return node.model_copy(update={"host": name or node.host})

    @property
    def platform(self) -> str:
        return _PLATFORMS.get(self.machine, f"linux/{self.machine}")

    @property
    def addresses(self) -> frozenset[ipaddress.IPv4Interface]:
        # Docker's bridge has the same address on every machine.
        return frozenset(
            address for interface in self.interfaces if not interface.bridge for address in interface.addresses
        )

    def interface(self, name: str | None) -> Interface | None:
        return next((interface for interface in self.interfaces if interface.name == name), None)

    def port(self, interface: Interface) -> list[Roce]:
        """Return the RoCE devices of an interface's QSFP port, its own first."""
        device = next((device for device in self.roce if device.interface == interface.name), None)
        if device is None:
            return []
        return [device, *(twin for twin in self.roce if twin != device and twin.slot and twin.slot == device.slot)]
