"""Describes a machine as one JSON object: `python3 - [--weights FOLDER] [SNAPSHOT…] < probe_node.py`, also over ssh.

It needs Python 3.8, but neither root nor packages. What cannot be read is null, and `unread` says why.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Python 3.8 could not evaluate these
    from collections.abc import Callable, Sequence
    from typing import Any

    Facts = dict[str, Any]
    Addresses = list[tuple[str, str]]  # interfaces, and their addresses with prefix

PATIENCE = 4  # seconds for a program; they run side by side
HUB_CACHE = "~/.cache/huggingface"
CDI = ("etc/cdi", "var/run/cdi")  # where the Container Device Interface keeps descriptions of devices


def probe(
    root: Path = Path("/"),
    weights: str = HUB_CACHE,
    snapshots: Sequence[str] = (),
    addresses: Callable[[], Addresses] | None = None,
) -> Facts:
    """Return the description; `root` has sys, proc, dev, etc and run, and `addresses` replaces what `ip` says."""
    unread: dict[str, str] = {}

    def attempt(name: str, read: Callable[[], Any]) -> Any:  # noqa: ANN401
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest is still worth knowing
            unread[name] = str(error) or type(error).__name__
            return None

    with ThreadPoolExecutor() as pool:
        docker = pool.submit(attempt, "docker", lambda: _docker(root))
        driver = pool.submit(attempt, "driver", _driver)
        facts = {
            "host": socket.gethostname(),
            "machine": platform.machine(),
            "home": str(Path.home()),
            "interfaces": attempt("interfaces", lambda: _interfaces(root, attempt, addresses or _addresses)) or [],
            "roce": attempt("roce", lambda: _roce(root)) or [],
            "verbs": attempt("verbs", lambda: any((root / "dev/infiniband").glob("uverbs*"))),
            "rsync": shutil.which("rsync") is not None,
            "snapshots": {name: _sizes(Path(weights, "hub", name).expanduser()) for name in snapshots},
            "driver": driver.result(),
            "docker": docker.result(),
        }
    folders = {"images": (facts["docker"] or {}).get("root"), "weights": weights}
    facts["disks"] = {name: attempt(f"the disk of {name}", partial(_disk, path)) for name, path in folders.items()}
    return {**facts, "unread": unread}


def _sizes(snapshot: Path) -> dict[str, int]:
    return {str(path.relative_to(snapshot)): path.stat().st_size for path in snapshot.rglob("*") if path.is_file()}


def _text(path: Path) -> str:
    """Return a file's text, or nothing: the kernel refuses some of an interface's files while its link is down."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if re.match(r"\d+$", text) else None  # the speed of a link that is down is -1


def _interfaces(
    root: Path, attempt: Callable[[str, Callable[[], Any]], Any], addresses: Callable[[], Addresses]
) -> list[Facts]:
    assigned = attempt("addresses", addresses) or []
    default = attempt("routes", lambda: _default_routes(root)) or set()
    return [
        {
            "name": path.name,
            "addresses": [address for name, address in assigned if name == path.name],
            "mtu": _number(_text(path / "mtu")),
            "up": _text(path / "carrier") == "1",
            "speed": _number(_text(path / "speed")),
            "wireless": (path / "wireless").exists() or (path / "phy80211").exists(),
            "bridge": (path / "bridge").exists(),
            "default_route": path.name in default,
        }
        for path in sorted((root / "sys/class/net").iterdir())
        if path.is_dir() and path.name != "lo"  # bonding_masters is a file
    ]


def _addresses() -> Addresses:
    interfaces = json.loads(_said("ip", "-json", "-4", "address"))
    return [
        (interface["ifname"], f"{address['local']}/{address['prefixlen']}")
        for interface in interfaces
        for address in interface.get("addr_info", [])
    ]


def _default_routes(root: Path) -> set[str]:
    rows = [line.split() for line in (root / "proc/net/route").read_text("utf-8").splitlines()[1:]]
    return {row[0] for row in rows if row[1] == row[7] == "00000000"}  # destination and mask


def _roce(root: Path) -> list[Facts]:
    """List RDMA devices over Ethernet; a QSFP port is two of them, the same function in two PCI domains."""
    devices = []
    folder = root / "sys/class/infiniband"
    for device in sorted(folder.iterdir()) if folder.is_dir() else []:
        # RDMA counts ports from 1.
        port = device / "ports/1"
        if _text(port / "link_layer") != "Ethernet":
            continue
        pci = (device / "device").resolve().name
        devices.append(
            {
                "name": device.name,
                "active": "ACTIVE" in _text(port / "state"),
                "interface": next((path.name for path in sorted((device / "device/net").glob("*"))), None),
                "slot": pci.partition(":")[2] or None,  # 0000:01:00.0 without its domain
                "gid_types": sorted({_text(path) for path in (port / "gid_attrs/types").glob("*")} - {""}),
            }
        )
    return devices


def _disk(folder: str | None) -> Facts | None:
    if folder is None:
        return None
    path = Path(folder).expanduser()
    while not path.exists():
        path = path.parent
    return {"path": folder, "free": shutil.disk_usage(str(path)).free}


def _driver() -> str:
    lines = _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    if not lines or not re.match(r"\d", lines[0]):
        raise ValueError("nvidia-smi shows no GPU")
    return lines[0].strip()


def _docker(root: Path) -> Facts:
    info = json.loads(_said("docker", "info", "--format", "{{json .}}"))
    if info.get("ServerErrors"):  # without a daemon, `docker info --format` may succeed all the same
        raise ValueError(" ".join(info["ServerErrors"]))
    described = any(path for folder in CDI for path in (root / folder).glob("*nvidia*"))
    return {
        "version": info["ServerVersion"],
        "root": info["DockerRootDir"],
        "gpus": "nvidia" in (info.get("Runtimes") or {}) or described,
    }


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)  # noqa: S603
    except FileNotFoundError:
        raise ValueError(f"there is no {command[0]} on PATH") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{command[0]} did not answer within {PATIENCE} seconds") from None
    if done.returncode:
        complaint = " ".join((done.stderr or done.stdout).decode("utf-8", "replace").split())[:500]
        raise ValueError(complaint or f"{command[0]} ended with {done.returncode}")
    return done.stdout.decode("utf-8", "replace").strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", default=HUB_CACHE)
    parser.add_argument("--root", default="/", type=Path)
    parser.add_argument("snapshots", nargs="*")
    arguments = parser.parse_args()
    sys.stdout.write(json.dumps(probe(arguments.root, arguments.weights, arguments.snapshots)) + "\n")
