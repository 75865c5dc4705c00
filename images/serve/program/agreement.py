"""What two nodes have to agree on before they serve one model: the image, the model's files, the settings, the time."""

import os
import time
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from . import flags
from .findings import Start
from .hiding import masked

APART = 60
"""Seconds that the clocks may differ."""
OWN = (
    *("NODE_RANK", "CABLE", "HOST", "PORT", "VLLM_API_KEY", "VLLM_API_KEY_FILE", "PROTECT_METRICS"),
    *("SERVED_MODEL_NAME", "WARMUP", "COMPILERS", "HANG_LIMIT", "MEMORY_FLOOR", "GPU_MEMORY_UTILIZATION"),
    *("MODS_PATH", "CHECKS", "SKIP_CHECKS", "EXTRA_ARGS"),
)
"""Settings that each node has for itself; the words of EXTRA_ARGS are compared without secrets."""


def of(start: Start) -> dict[str, Any]:
    """Describe this node; weights are compared by their sizes, as hashes would take minutes."""
    folder = start.folder
    package = flags.find_package(start.server.name)
    found = sorted(Path(package).parent.glob("*.dist-info")) if package else []
    program = Path(__file__).parent
    values = {name: value for name, value in start.settings.values.items() if name not in OWN}
    return {
        "image": str(start.image.facts.get("target", "")),
        "machine": os.uname().machine,
        start.image.title: start.image.version,
        "packages": _digest(path.name for path in found),
        "serve program": _digest(path.read_text("utf-8") for path in sorted(program.rglob("*.py"))),
        "model": start.command.model,
        "revision": start.command.revision or _commit(folder),
        "size of the weights": _sizes(folder),
        "flags": masked(start.settings.extra),
        **values,
    }


def differences(own: Mapping[str, Any], other: Mapping[str, Any], clock: float) -> list[str]:
    """List what differs; what a node does not know yet, as before a download, is no difference."""
    found = []
    for name, value in own.items():
        theirs = other.get(name)
        if theirs != value and not (name in {"revision", "size of the weights"} and "" in {value, theirs}):
            found.append(f"{name} {_shown(value)} / {_shown(theirs)}")
    apart = clock - time.time()
    if abs(apart) > APART:
        found.append(f"the clock there is {abs(apart):,.0f} s {'ahead' if apart > 0 else 'behind'}")
    return found


def _digest(texts: Iterable[str]) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:12]


def _commit(folder: str | None) -> str:
    path = Path(folder or "")
    return path.name if path.parent.name == "snapshots" else ""


def _sizes(folder: str | None) -> str:
    if folder is None:
        return ""
    files = sorted(Path(folder).glob("*.safetensors"))
    return f"{sum(path.stat().st_size for path in files):,} bytes in {len(files)} files"


def _shown(value: object) -> str:
    return "none" if value in (None, "", []) else str(value)
