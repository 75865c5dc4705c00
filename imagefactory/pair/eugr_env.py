"""Reads the `.env` that setup-cluster.sh of eugr/spark-vllm-docker writes; nothing here changes it.

It may hold tokens, so only what describes the network is kept. With different ports at the ends of the cable, ETH_IF
is the management interface, and CLUSTER_LINKS lists the addresses on the cable.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from imagefactory.errors import InputError

MANIFEST: Final = ".local/state/spark-vllm-docker/cluster-setup.json"
USUAL: Final = "spark-vllm-docker/.env"


@dataclass(frozen=True)
class EugrEnv:
    """What it says about the network."""

    path: Path
    interface: str
    """ETH_IF; the same on all nodes."""
    devices: tuple[str, ...]
    """IB_IF: RoCE devices."""
    nodes: tuple[str, ...]
    """CLUSTER_NODES: addresses, the head's first."""
    links: frozenset[str]
    """CLUSTER_LINKS: addresses on cables, where the nodes' own are not."""

    @property
    def addresses(self) -> frozenset[str]:
        return self.links or frozenset(self.nodes)


def find_env(home: Path) -> Path | None:
    """Return where setup-cluster.sh says that it wrote the file, or where it usually is."""
    places = [home / USUAL]
    with suppress(OSError, ValueError, TypeError, KeyError):
        places.insert(0, home / json.loads((home / MANIFEST).read_text("utf-8"))["env_file"])
    return next((place for place in places if place.is_file()), None)


def read_env(path: Path) -> EugrEnv:
    try:
        values = dict(_setting(line) for line in path.read_text("utf-8").splitlines() if _is_setting(line))
        links = json.loads(values.get("CLUSTER_LINKS") or "[]")
        addresses = frozenset(str(address) for link in links for address in link.values())
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InputError(
            "bad-cluster-env",
            f"{path.name} cannot be read.",
            where=path,
            why=f"{getattr(error, 'strerror', None) or error}.",
            fix="Run eugr's `./setup-cluster.sh --save-env` again, or name another file.",
        ) from None
    listed = {name: tuple(filter(None, values.get(name, "").split(","))) for name in ("IB_IF", "CLUSTER_NODES")}
    return EugrEnv(path, values.get("ETH_IF", ""), listed["IB_IF"], listed["CLUSTER_NODES"], addresses)


def _is_setting(line: str) -> bool:
    return "=" in line and not line.lstrip().startswith("#")


def _setting(line: str) -> tuple[str, str]:
    name, _, value = (part.strip() for part in line.partition("="))
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return name, value[1:-1] if quoted else value
