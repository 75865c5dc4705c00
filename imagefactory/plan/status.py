"""How far a plan is: which layers are cached here, which sizes are recorded, what other targets share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from imagefactory.locks.project import Project
from imagefactory.oci.blob import Blob
from imagefactory.oci.image import Image
from imagefactory.plan.changes import is_cached, shared_download
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Layer, Plan


class LayerStatus(NamedTuple):
    """A layer of a plan, as far as this checkout and this machine know it."""

    layer: Layer
    blob: Blob | None
    """What locks/layers.toml records for it."""
    cached: bool


@dataclass(frozen=True)
class PlanStatus:
    """A plan and what is known about it before anything is built."""

    plan: Plan
    layers: tuple[LayerStatus, ...]
    image: Image | None
    """The image that will come out; None while a layer has never been built."""
    shared: int
    """Bytes of inputs whose layers other targets have too."""


def plan_status(project: Project, plan: Plan, others: Iterable[Plan]) -> PlanStatus:
    """Look a plan up in the records and the store; `others` are the plans it may share layers with."""
    known = KnownLayers(project.known_layers)
    layers = (
        LayerStatus(layer, known.blob(layer.key), is_cached(project.store, layer)) for layer in plan.layers
    )
    return PlanStatus(plan, tuple(layers), known.image(plan), shared_download(plan, others))
