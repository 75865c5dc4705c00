"""Building targets: fetch what the locks name, build the layers that are missing, lay out the images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagefactory.cells import Cell
from imagefactory.content import Sha256
from imagefactory.engines.watch import Watcher
from imagefactory.errors import UnknownNameError
from imagefactory.known import KnownLayers
from imagefactory.layers.records import read_blob_record
from imagefactory.locks import write_text_atomically
from imagefactory.oci.blob import Blob
from imagefactory.oci.image import Image, make_image
from imagefactory.oci.layout import Layout, write_layout
from imagefactory.plan import Layer, Plan, make_plan
from imagefactory.planview import LAST_PLAN
from imagefactory.project import Project
from imagefactory.store import Store
from imagefactory.targets import select

if TYPE_CHECKING:
    from imagefactory.downloads import Wanted

Say = Callable[[str], None]


@dataclass(frozen=True)
class Built:
    """A finished image and where it is laid out."""

    plan: Plan
    image: Image
    layout: Layout


def build(
    project: Project,
    cells: Sequence[Cell],
    watch: Watcher,
    say: Say,
    *,
    locked_only: bool = False,
    output: Path | None = None,
    workers: int | None = None,
    record: bool = True,
) -> list[Built]:
    """Build the images of cells; layers that several of them share are built once."""
    with project.store.in_use():
        plans, blobs = _make_layers(project, cells, watch, say, locked_only=locked_only, workers=workers)
        known = KnownLayers(project.known_layers)
        for plan in plans:
            for layer in plan.layers:
                known.confirm(layer, blobs[layer.key])
        built = []
        for plan in plans:
            image = make_image(plan, [blobs[layer.key] for layer in plan.layers])
            folder = (output / plan.cell.slug if output and len(plans) > 1 else output) or project.build_folder(plan.cell)
            folder.parent.mkdir(parents=True, exist_ok=True)
            layout = write_layout(image, plan.cell.slug, project.store, folder)
            write_text_atomically(folder / LAST_PLAN, plan.model_dump_json(indent=1))
            built.append(Built(plan, image, layout))
    if record:
        _remember(project, known, [item.plan for item in built if item.plan.locked], blobs)
    return built


def _make_layers(
    project: Project, cells: Sequence[Cell], watch: Watcher, say: Say, *, locked_only: bool, workers: int | None
) -> tuple[list[Plan], dict[Sha256, Blob]]:
    """Plan, and build the layers that are missing. What downloads or builds is imported only when needed."""
    plans = [make_plan(project, cell) for cell in cells]
    blobs, missing = _recall(plans, project.store)
    wanted: Callable[[Layer], Sequence[Wanted]] = lambda _: ()  # noqa: E731 - replaced below where there are inputs
    if any(layer.inputs for layer in missing):
        from imagefactory.sources import Sources  # noqa: PLC0415

        sources = Sources(project, cells)
        wanted = sources.wanted
        if not locked_only and sources.replace_vanished_debs(plans, say):
            plans = [make_plan(project, cell) for cell in cells]
            blobs, missing = _recall(plans, project.store)
    watch.layers(list({layer.key: layer for plan in plans for layer in plan.layers}.values()))
    for key, blob in blobs.items():
        watch.state(key, "cached", blob.size, blob.size)
    if missing:
        from imagefactory.engines.embedded import build_layers  # noqa: PLC0415

        blobs |= build_layers(missing, wanted, project.store, watch, workers=workers)
    return plans, blobs


def _recall(plans: Sequence[Plan], store: Store) -> tuple[dict[Sha256, Blob], list[Layer]]:
    """Divide the layers of plans into those that are here and those that are not."""
    blobs: dict[Sha256, Blob] = {}
    missing: dict[Sha256, Layer] = {}
    for layer in (layer for plan in plans for layer in plan.layers):
        blob = read_blob_record(layer.key, store)
        if blob is None:
            missing[layer.key] = layer
        else:
            blobs[layer.key] = blob
    return blobs, list(missing.values())


def built_layouts(project: Project, targets: Sequence[str], *, one: bool = False) -> list[tuple[Cell, Layout, str]]:
    """Find the images that were built for targets, each with the name it goes by in an engine."""
    cells = select(project.matrix, targets or [next(iter(project.matrix.models))])
    if one and len(cells) > 1:
        raise UnknownNameError(
            f"{len(cells)} images are meant; one is needed.",
            where=f"the target {' '.join(targets)!r}",
            why=f"It stands for {', '.join(str(cell) for cell in cells[:3])} and others.",
            fix="Name one image in full: MODEL@VLLM/ARCH.",
        )
    repository = project.matrix.effective_registry.rpartition("/")[2].lower()
    found = []
    for cell in cells:
        layout = Layout(project.build_folder(cell))
        layout.manifest_digest()  # fails with a remedy when there is no image
        found.append((cell, layout, f"{repository}:{cell.slug}"))
    return found


def _remember(project: Project, known: KnownLayers, plans: Sequence[Plan], blobs: Mapping[Sha256, Blob]) -> None:
    """Record what new layers came out as, and forget those that no locked target has any more."""
    found = {
        layer.key: (f"{layer.kind} {layer.name}", blobs[layer.key])
        for plan in plans
        for layer in plan.layers
        if known.blob(layer.key) is None
    }
    if not found:
        return
    from imagefactory.locking import locked_cells  # noqa: PLC0415 - brings the resolvers along

    needed = {
        layer.key
        for cell in locked_cells(project)
        if project.is_locked(cell)
        for layer in make_plan(project, cell).layers
    }
    known.record(found, needed)
