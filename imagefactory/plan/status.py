"""The status of a plan: cached layers, recorded sizes, and what changed since the last build."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from imagefactory.oci.image import Blob, Image
from imagefactory.plan.known_layers import KnownLayers, read_blob_record
from imagefactory.plan.plan import Layer, Plan
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
_SHORT = 100  # characters of two values that a line of a table holds


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
    config = _differences(*(dict(_flat(plan.config.model_dump())) for plan in (old, new)))
    return changes + [LayerChange("image config", what) for what in config]


def _label(layer: Layer) -> str:
    return f"{layer.kind} {layer.name}"


def _why(old: Layer, new: Layer) -> list[str]:
    return _differences(_covered(old), _covered(new)) or ["the order of its inputs or mods"]


def _covered(layer: Layer) -> dict[str, object]:
    """Return what the key of a layer covers: its inputs, the mods applied so far, and the other settings."""
    settings = layer.settings.model_dump(mode="json")
    mods = {f"mods/{link['manifest']['name']}": link for link in settings.pop("chain", ())}
    return {f"input {file.name}": file.sha256 for file in layer.inputs} | mods | dict(_flat(settings))


def _flat(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from _flat(inner, f"{name} {key}".lstrip())


def _differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    return [
        f"{name} {'added' if name not in old else 'removed' if name not in new else _change(old[name], new[name])}"
        for name in sorted(old.keys() | new.keys())
        if name not in old or name not in new or old[name] != new[name]
    ]


def _change(old: object, new: object) -> str:
    before, after = (json.dumps(value, sort_keys=True, default=str) for value in (old, new))
    return f"{before} -> {after}" if len(before + after) <= _SHORT else "changed"
