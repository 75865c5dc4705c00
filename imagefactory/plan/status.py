"""The status of a plan: cached layers, recorded sizes, and layers shared with other targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from imagefactory.oci.image import Blob, Image
from imagefactory.plan.built_layers import read_blob_record
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Layer, Plan
from imagefactory.project.project import Project


class LayerStatus(NamedTuple):
    """A layer, its record in this checkout, and whether this machine has it."""

    layer: Layer
    blob: Blob | None
    """Its record in locks/layers.toml."""
    cached: bool


@dataclass(frozen=True)
class PlanStatus:
    """A plan, and the facts about it before a build."""

    plan: Plan
    layers: tuple[LayerStatus, ...]
    image: Image | None
    """The resulting image; None if a layer was never built."""
    shared: int | None
    """Bytes of the layers that other targets have too; None if nobody asked."""


def plan_status(project: Project, plan: Plan, others: Iterable[Plan] | None = None) -> PlanStatus:
    """Return the status of a plan; `others` are the plans it may share layers with."""
    known = KnownLayers(project.known_layers)
    layers = tuple(
        LayerStatus(layer, known.blob(layer.key), read_blob_record(layer.key, project.store) is not None)
        for layer in plan.layers
    )
    if others is None:
        return PlanStatus(plan, layers, known.image(plan), shared=None)
    elsewhere = {layer.key for other in others if other.target != plan.target for layer in other.layers}
    shared = sum(layer.download for layer in plan.layers if layer.key in elsewhere)
    return PlanStatus(plan, layers, known.image(plan), shared)
