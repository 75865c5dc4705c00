"""The status of a plan: cached layers, recorded sizes, and what changed since the last build."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from imagefactory.oci.image import Blob, Image
from imagefactory.plan.known_layers import KnownLayers, read_blob_record
from imagefactory.plan.plan import Layer, ModLayer, ModSettings, Plan
from imagefactory.project.project import Project


class LayerStatus(NamedTuple):
    """A layer, its record in this checkout, and whether this machine has it."""

    layer: Layer
    blob: Blob | None  # its record in locks/layers.toml
    cached: bool


@dataclass(frozen=True)
class PlanStatus:
    """A plan, and the facts about it before a build."""

    plan: Plan
    layers: tuple[LayerStatus, ...]
    image: Image | None  # the resulting image; None if a layer was never built


def plan_status(project: Project, plan: Plan) -> PlanStatus:
    known = KnownLayers(project.known_layers)
    layers = tuple(
        LayerStatus(layer, known.blob(layer.key), read_blob_record(layer.key, project.store) is not None)
        for layer in plan.layers
    )
    return PlanStatus(plan, layers, known.image(plan))


LAST_PLAN = "plan.json"


class LayerChange(NamedTuple):
    """A changed layer, and the input or setting that changed it."""

    name: str
    what: str


def last_plan(folder: Path) -> Plan | None:
    try:
        return Plan.model_validate_json((folder / LAST_PLAN).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def diff_plans(old: Plan, new: Plan) -> list[LayerChange]:
    # The name of a bundle is the number of its wheels.
    before, after = (
        {layer.kind if layer.kind.endswith("-bundle") else _label(layer): layer for layer in plan.layers}
        for plan in (old, new)
    )
    changes = [LayerChange(_label(before[name]), "removed") for name in before if name not in after]
    for name, layer in after.items():
        if name not in before:
            changes.append(LayerChange(_label(layer), "new"))
        elif before[name].key != layer.key:
            changes += [LayerChange(_label(layer), what) for what in _why(before[name], layer)]
    old_config, new_config = old.config.model_dump(), new.config.model_dump()
    changes += [
        LayerChange("image config", f"{field}: {_differing(old_config[field], new_config[field])}")
        for field in new_config
        if old_config[field] != new_config[field]
    ]
    return changes


def _label(layer: Layer) -> str:
    return f"{layer.kind} {layer.name}"


def _why(old: Layer, new: Layer) -> list[str]:
    before, after = ({item.name: item.sha256 for item in layer.inputs} for layer in (old, new))
    reasons = [f"input removed: {name}" for name in sorted(before.keys() - after.keys())]
    reasons += [f"input added: {name}" for name in sorted(after.keys() - before.keys())]
    reasons += [f"input changed: {name}" for name in sorted(before.keys() & after) if before[name] != after[name]]
    if isinstance(old, ModLayer) and isinstance(new, ModLayer) and old.settings != new.settings:
        reasons += _differing_mods(old.settings, new.settings)
    elif old.settings != new.settings:
        both = (layer.settings.model_dump(mode="json") for layer in (old, new))
        reasons.append(f"settings: {_differing(*both)}")
    return reasons or ["the order of its inputs"]


def _differing_mods(old: ModSettings, new: ModSettings) -> list[str]:
    before, after = ({link.manifest["name"]: link for link in settings.chain} for settings in (old, new))
    reasons = [f"mods/{name} is no longer applied before it" for name in before if name not in after]
    reasons += [f"mods/{name} is now applied before it" for name in after if name not in before]
    reasons += [f"mods/{name} changed" for name in after if name in before and before[name] != after[name]]
    return reasons or ["the wheels that its mods change"]


def _differing(old: object, new: object) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        return ", ".join(f"{key} {_differing(old.get(key), new.get(key))}" for key in keys)
    before, after = _short(old), _short(new)
    return f"{before} -> {after}" if before != after else "changed"


def _short(value: object) -> str:
    text = "nothing" if value is None else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - fits a line of a table
