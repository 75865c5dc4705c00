"""Tells vLLM to keep its KV cache on a disk, with the classes in ../hook/imagefactory_kv.py."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from .command import option
from .image import Image
from .memory import GB
from .settings import Settings

MODULE = "imagefactory_kv"
ENGINE = "imagefactory-"
FLAG = "--kv-transfer-config"
HARMLESS = frozenset(
    (
        *("--host", "--port", "--served-model-name", "--gpu-memory-utilization", "--max-num-seqs"),
        *("--max-num-batched-tokens", "--load-format", "--chat-template", "--tool-call-parser"),
        *("--reasoning-parser", "--enable-auto-tool-choice", "--enable-prefix-caching"),
    )
)
"""Flags that do not change what is in a KV cache; with any other that is new, what is on the disk is not read."""


def stage(settings: Settings) -> int:
    """Return the bytes of the host's memory through which everything passes; 0 without a disk."""
    return (settings.number("KV_DISK_STAGE_GB") or 0) * GB if settings.text("KV_DISK") else 0


def config(image: Image, settings: Settings, words: Sequence[str]) -> dict[str, Any] | None:
    """Return what vLLM is told; `words` are the other arguments, without the model."""
    folder = settings.text("KV_DISK")
    if not folder:
        return None
    about = {
        "image": [image.facts.get(name, "") for name in ("arch", "kernels", "weights")],
        "mods": settings.words("MODS"),
        "dummy": settings.text("LOAD_FORMAT") == "dummy",
        "revision": option(words, "--revision") or "",
        # Users may have put secrets among them.
        "arguments": sha256("\0".join(sorted(_telling(words))).encode()).hexdigest(),
    }
    limit = (settings.number("KV_DISK_GB") or 0) * GB
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        **_engine(folder),
        "kv_connector_extra_config": {
            "spec_name": "DiskSpec",
            "spec_module_path": MODULE,
            "cpu_bytes_to_use": stage(settings),
            "disk": {"folder": folder, "bytes": limit, "about": about},
        },
    }


def _engine(folder: str) -> dict[str, str]:
    """Return a name for the stage that is the same for each start with the folder, and another for any other folder."""
    with suppress(OSError):
        found = Path(folder).stat()
        return {"engine_id": f"{ENGINE}{found.st_dev:x}-{found.st_ino:x}"}
    return {}


def forget_stages(words: Sequence[str], shared: str = "/dev/shm") -> None:  # noqa: S108 - not a file of ours
    """Remove the stage of a start that was killed before it was ready; it takes memory, of the host with --ipc host."""
    for name in re.findall(rf'"engine_id": "({ENGINE}[0-9a-f-]+)"', " ".join(words)):
        for stage in Path(shared).glob(f"vllm_offload_{name}*.mmap"):
            with suppress(OSError):
                stage.unlink()


def _telling(words: Sequence[str]) -> Iterator[str]:
    """Yield the flags that matter, each with its values."""
    flag: list[str] = []
    for word in (*words, "--"):
        if word.startswith("--"):
            name = flag[0].partition("=")[0].replace("_", "-") if flag else ""
            if name and name not in HARMLESS and name.replace("--no-", "--") not in HARMLESS:
                yield " ".join(flag)
            flag = []
        flag.append(word)
