"""Compares nodes: they serve one model only if image, packages, model, settings, MTU and clocks are the same."""

import math
import os
import time
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from .channel import NO_MESSAGE, Link, printable
from .errors import StartError
from .findings import Start
from .pair import Node
from .redaction import masked

APART = 60
"""Seconds that the clocks may differ."""
OWN = (
    *("NODE_RANK", "CABLE", "HOST", "PORT", "VLLM_API_KEY", "VLLM_API_KEY_FILE", "PROTECT_METRICS"),
    "PAIR_SECRET_FILE",
    *("SERVED_MODEL_NAME", "WARMUP", "COMPILERS", "HANG_LIMIT", "MEMORY_FLOOR", "GPU_MEMORY_UTILIZATION"),
    *("MODS_PATH", "CHECKS", "SKIP_CHECKS", "EXTRA_ARGS"),
)
"""Settings that each node has for itself; the words of EXTRA_ARGS are compared without secrets."""


def describe(node: Node, start: Start) -> dict[str, Any]:
    """Describe this node; weights are compared by their sizes, as hashes would take minutes."""
    folder = Path(start.folder or "")
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")] if start.folder else []
    found = sorted(Path(start.package).parent.glob("*.dist-info")) if start.package else []
    return {
        "image": str(start.image.facts.get("target", "")),
        "machine": os.uname().machine,
        "MTU of the cable": node.interface.mtu,  # with two, large packets are lost and the servers hang
        start.image.title: start.image.version,
        "packages": _digest(path.name for path in found),
        "serve program": _digest(path.read_text("utf-8") for path in sorted(Path(__file__).parent.rglob("*.py"))),
        "model": start.command.model,
        "revision": start.command.revision or (folder.name if folder.parent.name == "snapshots" else ""),
        "size of the weights": f"{sum(sizes):,} bytes in {len(sizes)} files" if start.folder else "",
        "flags": masked(start.settings.extra),
        **{name: value for name, value in start.settings.values.items() if name not in OWN},
    }


def compare(link: Link, own: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse another node that differs."""
    clock = other.get("clock")
    if not (isinstance(clock, float) and math.isfinite(clock)):
        raise ValueError(NO_MESSAGE)
    if differences := _differences(own, other, clock):
        here = link.connection.getsockname()[0]  # the head tells others what it found
        what = f"The nodes differ (on {here} / on {link.other}): {'; '.join(differences)}."
        same = "the same image, by its digest, with the same model and settings"
        remedy = f"Start {same} on all nodes; set the clocks, and one MTU at all ends of the cable."
        raise StartError("nodes-differ", what, remedy=remedy)


def _differences(own: Mapping[str, Any], other: Mapping[str, Any], clock: float) -> list[str]:
    """List what differs; what a node does not know yet, as before a download, is no difference."""
    found = []
    for name, value in own.items():
        theirs = other.get(name)
        if theirs != value and not (name in {"revision", "size of the weights"} and "" in (value, theirs)):
            found.append(f"{name} {_shown(value)} / {_shown(theirs)}")
    apart = clock - time.time()
    if abs(apart) > APART:
        found.append(f"the clock there is {abs(apart):,.0f} s {'ahead' if apart > 0 else 'behind'}")
    return found


def _digest(texts: Iterable[str]) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:12]


def _shown(value: object) -> str:
    return "none" if value in (None, "", []) else printable(value)
