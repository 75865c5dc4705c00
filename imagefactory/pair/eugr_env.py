"""Reads the `.env` that setup-cluster.sh of eugr/spark-vllm-docker writes; nothing here changes it.

It may hold tokens, so only what describes the network is kept. With different ports at the ends of the cable, ETH_IF
is the management interface, and CLUSTER_LINKS lists the addresses on the cable.
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from imagefactory.errors import InputError

MANIFEST: Final = ".local/state/spark-vllm-docker/cluster-setup.json"
USUAL: Final = "spark-vllm-docker/.env"
_SETTING: Final = re.compile(r"""^[ \t]*(\w+)[ \t]*=[ \t]*(['"]?)(.*?)\2[ \t]*$""", re.MULTILINE)


@dataclass(frozen=True)
class EugrEnv:
    """What it says about the network."""

    path: Path
    interface: str
    """ETH_IF; the same on all nodes."""
    devices: frozenset[str]
    """IB_IF: RoCE devices."""
    addresses: frozenset[str]
    """CLUSTER_LINKS: those on cables; without them CLUSTER_NODES, the nodes' own."""


def find_env(home: Path) -> Path | None:
    """Return where setup-cluster.sh says that it wrote the file, or where it usually is."""
    places = [home / USUAL]
    with suppress(OSError, ValueError, TypeError, KeyError):
        places.insert(0, home / json.loads((home / MANIFEST).read_text("utf-8"))["env_file"])
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
