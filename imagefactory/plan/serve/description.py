"""Writes settings.json for the serve program: the settings with the defaults of one image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from imagefactory.plan.serve.image_paths import MODS_AT_START
from imagefactory.project.cells import Cell, KernelOrigin, intended_kernels
from imagefactory.project.matrix import Matrix
from imagefactory.project.servers.known import server_of
from imagefactory.project.servers.setting import Setting
from imagefactory.store.digests import canonical_json

FORMAT = 1
GB = 1_000_000_000
CUDA_13_DRIVER = "580"
"""The first driver branch for CUDA 13 and for GB10."""
CUDA_12_DRIVER = "525"
"""The first driver branch for CUDA 12."""
Description = dict[str, Any]


def describe_image(
    matrix: Matrix, cell: Cell, model: Mapping[str, Any], *, kernels: KernelOrigin | None = None
) -> Description:
    """Return the content of settings.json for a cell; `model` is the content of model.json."""
    serve = dict(model.get("serve", {}))
    for shape in matrix.models[cell.model].shapes(cell.server, cell.arch)[1:]:
        serve |= shape.by_name(given=True)
    facts = _image_facts(matrix, cell, kernels)
    server = server_of(cell)
    covered = {setting.key for setting in server.settings}
    more = {name: value for name, value in serve.items() if name not in covered}
    if more:
        facts["flags"] = dict(sorted(more.items()))
    settings = [
        _entry(setting, _default(setting, model, serve), f"{server.name}_default")
        for setting in server.settings
    ]
    refused = {"refused": dict(server.refused)} if server.refused else {}
    return {"format": FORMAT, "image": facts, "settings": settings, **refused}


def settings_bytes(description: Description) -> bytes:
    """Serialise settings.json, deterministically."""
    return json.dumps(json.loads(canonical_json(description)), indent=1, sort_keys=True).encode() + b"\n"


def image_environment(description: Description) -> dict[str, str]:
    """Return the image's defaults as variables, for `docker inspect`; secrets have none."""
    return {
        entry["name"]: entry["default"]
        for entry in description["settings"]
        if entry["default"] and entry["kind"] != "secret"
    }


def _default(setting: Setting, model: Mapping[str, Any], serve: Mapping[str, Any]) -> str:
    drafters = model.get("drafters") or [{}]
    of_model = {
        "MODEL": model["model"],
        "DFLASH_DRAFTER": drafters[0].get("repo"),
        "DFLASH_NUM_SPEC_TOKENS": drafters[0].get("tokens"),
        "DRAFT_ATTENTION_BACKEND": drafters[0].get("attention_backend"),
    }
    value = of_model.get(setting.name, serve.get(setting.key))
    return setting.default if value is None else _as_text(value)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def _entry(setting: Setting, default: str, assumed: str) -> dict[str, Any]:
    entry = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(setting).items()
        if key not in {"passed", "spelled", "server_default"} and value not in (None, "", (), {})
    }
    if setting.server_default:
        entry[assumed] = setting.server_default
    return entry | ({"flag": setting.flag} if setting.passed else {}) | {"default": default}


def _driver_minimum(matrix: Matrix, cell: Cell) -> str:
    """Return the oldest NVIDIA driver for an image; empty for images without CUDA."""
    arch = matrix.archs[cell.arch]
    if arch.capability is None:
        return ""
    # Capability 12.1 needs the same driver as CUDA 13.
    if server_of(cell).needs_cuda_13(matrix.versions[cell.version]) or arch.capability == "12.1":
        return CUDA_13_DRIVER
    return CUDA_12_DRIVER


def _memory_facts(matrix: Matrix, cell: Cell) -> dict[str, object]:
    """Return the sizes of a model in matrix.yaml, in bytes; empty if it has none."""
    memory = matrix.models[cell.model].memory
    if memory is None:
        return {}
    return {
        "weights": round(memory.weights_gb * GB),
        "download": round((memory.download_gb or memory.weights_gb) * GB),
        "drafter": round(memory.drafter_gb * GB),
        "kv_per_token": memory.kv_bytes_per_token,
        "kv_per_sequence": memory.kv_bytes_per_sequence,
        "context": memory.context,
        "hybrid": memory.hybrid,
    }


def _image_facts(matrix: Matrix, cell: Cell, kernels: KernelOrigin | None) -> dict[str, object]:
    """Return the requirements that the serve program checks."""
    version, arch = matrix.versions[cell.version], matrix.archs[cell.arch]
    origin = kernels or intended_kernels(matrix, cell)
    facts: dict[str, object] = {
        "target": str(cell),
        cell.server: str(version.version),
        "arch": cell.arch,
        "capability": arch.capability or "",
        "driver": _driver_minimum(matrix, cell),
        # The serve program only has to know whether the kernels are for one chip, as those of a graft are.
        "kernels": "compiled" if origin == "graft" else origin,
        "weights": matrix.models[cell.model].weights,
        "mods_module": MODS_AT_START,
    }
    memory = _memory_facts(matrix, cell)
    return facts | ({"memory": memory} if memory else {})
