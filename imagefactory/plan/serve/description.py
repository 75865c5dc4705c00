"""Writes settings.json for the serve program: the settings with the defaults of one image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from imagefactory.matrix.cells import Cell, KernelOrigin
from imagefactory.matrix.matrix import Matrix
from imagefactory.plan.serve.image_facts import image_facts
from imagefactory.plan.serve.settings_schema import SCHEMA, Setting
from imagefactory.store.digests import canonical_json

FORMAT = 1
Description = dict[str, Any]


def describe_image(
    matrix: Matrix,
    cell: Cell,
    model: Mapping[str, Any],
    *,
    kernels: KernelOrigin | None = None,
    mods_module: str = "",
) -> Description:
    """Describe how a cell's image is served.

    `model` is what model.json says (`launch.model_settings`); `mods_module` the path of a Python module in the image,
    without `.py`, whose `apply_mods(names, folder)` serves the setting MODS.
    """
    serve = served(matrix, cell, model)
    facts = image_facts(matrix, cell, kernels)
    covered = {setting.key for setting in SCHEMA}
    more = {name: value for name, value in serve.items() if name not in covered}
    if more:
        facts["flags"] = dict(sorted(more.items()))
    if mods_module:
        facts["mods_module"] = mods_module
    settings = [_entry(setting, _default(setting, model, serve)) for setting in SCHEMA]
    return {"format": FORMAT, "image": facts, "settings": settings}


def settings_bytes(description: Description) -> bytes:
    """Write settings.json: the same bytes for the same description."""
    return json.dumps(json.loads(canonical_json(description)), indent=1, sort_keys=True).encode() + b"\n"


def image_environment(description: Description) -> dict[str, str]:
    """Return the variables that an image sets, so that `docker inspect` shows its defaults. No secret has one."""
    return {
        entry["name"]: entry["default"]
        for entry in description["settings"]
        if entry["default"] and entry["kind"] != "secret"
    }


def served(matrix: Matrix, cell: Cell, model: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a model's settings with what matrix.yaml says for this arch (`serve_on`), where it says something."""
    on_arch: Mapping[str, Any] = getattr(matrix.models[cell.model], "serve_on", {})
    special = on_arch.get(cell.arch)
    merged = dict(model.get("serve", {}))
    return merged | (special.model_dump(mode="json", exclude_unset=True, exclude={"env"}) if special else {})


def _default(setting: Setting, model: Mapping[str, Any], serve: Mapping[str, Any]) -> str:
    drafters = model.get("drafters") or [{}]
    of_model = {
        "MODEL": model["model"],
        "DFLASH_DRAFTER": drafters[0].get("repo"),
        "DFLASH_NUM_SPEC_TOKENS": drafters[0].get("tokens"),
        "DRAFT_ATTENTION_BACKEND": drafters[0].get("attention_backend"),
    }
    value = of_model.get(setting.name, serve.get(setting.key))
    return setting.default if value is None else as_text(value)


def as_text(value: object) -> str:
    """Write a value the way a user would set it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def _entry(setting: Setting, default: str) -> dict[str, Any]:
    entry = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(setting).items()
        if key != "passed" and value not in (None, "", (), {})
    }
    return entry | ({"flag": setting.flag} if setting.passed else {}) | {"default": default}
