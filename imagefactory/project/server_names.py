"""Names the servers that images run, and tells them apart by the name of a version.

vLLM's versions are named by their number (0.32.0), those of any other server start with its name (sglang-0.5.21).
"""

from __future__ import annotations

from typing import Final

VLLM: Final = "vllm"
TITLES: Final = {VLLM: "vLLM", "sglang": "SGLang"}
"""The servers by their key in matrix.yaml, with the names that people know them by."""


def server_name(version: str) -> str:
    """Return the server that a version belongs to."""
    prefix, dash, _ = version.partition("-")
    return prefix if dash and prefix in TITLES else VLLM


def version_name(server: str, key: str) -> str:
    """Return the name of a version in targets, given its key in matrix.yaml."""
    return key if server == VLLM else f"{server}-{key}"


def version_key(version: str) -> str:
    """Return the key that a version has below its server in matrix.yaml."""
    return version if server_name(version) == VLLM else version.partition("-")[2]


def version_title(version: str) -> str:
    """Return what messages call a version: vLLM 0.32.0."""
    return f"{TITLES[server_name(version)]} {version_key(version)}"
