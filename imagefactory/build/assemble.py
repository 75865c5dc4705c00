"""Building targets: fetch what the locks name, build the layers that are missing, lay out the images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagefactory.build.watch import Watcher
from imagefactory.errors.layers import ImageMissingError, NotReproducibleError
from imagefactory.errors.locks import RecordNotWrittenError
from imagefactory.errors.store import DiskFullError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.matrix.targets import select, select_one
from imagefactory.oci.blob import Blob
from imagefactory.oci.image import Image
from imagefactory.oci.layout import Layout, refuse_unusable, write_layout, writing_output
from imagefactory.plan.built_layers import mark_layer_used, read_blob_record
from imagefactory.plan.changes import LAST_PLAN, last_plan
from imagefactory.plan.image_documents import make_image
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import locked_plans, make_plan
from imagefactory.plan.plan import Layer, Plan
from imagefactory.store.atomic import write_text_atomically
from imagefactory.store.cache import Store, locked
from imagefactory.store.digests import Sha256
from imagefactory.store.progress import Say

if TYPE_CHECKING:
    from imagefactory.store.downloads import Wanted

Elsewhere = Callable[[Sequence[Layer]], Mapping[Sha256, Blob]]
"""Asked for layers that are not here; says of some that they need not be made, and what they come out as."""


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
    """Build the images of cells; layers that several of them share are built once.

    With `record`, layers must come out as the record says, and new ones are added to it. Without, they are made and
    looked into as if nothing were known of them.
    """
    known = KnownLayers(project.known_layers)
    for cell in cells:
        refuse_unusable(_folder(project, cell, output, several=len(cells) > 1))
    with project.store.in_use():
        project.store.sweep()
        plans, blobs = make_layers(
            project,
            cells,
            watch,
            say,
            locked_only=locked_only,
            workers=workers,
            known=known if record else None,
        )
        built = [
            _lay_out(plan, blobs, project, _folder(project, plan.cell, output, several=len(plans) > 1))
            for plan in plans
        ]
    if record:
        with _recording(project, built):
            remember(project, known, [plan for plan in plans if plan.locked], blobs)
    return built


@contextmanager
def _recording(project: Project, built: Sequence[Built]) -> Iterator[None]:
    """Say of a record that cannot be written what is not lost: the images."""
    try:
        yield
    except (OSError, DiskFullError) as error:
        images = ", ".join(f"{image.image.digest} in {image.layout.folder}" for image in built)
        reason = error.why if isinstance(error, DiskFullError) else error.strerror or str(error)
        raise RecordNotWrittenError(
            "The image is built, but not recorded.",
            where=project.known_layers,
            why=f"{reason}. This is what was built: {images}.",
            fix="Use the image as it is. To record it, make the file writable and build again: it is all in the cache.",
        ) from None


def confirm(known: KnownLayers, plans: Iterable[Plan], blobs: Mapping[Sha256, Blob], store: Store) -> None:
    """Stop when a layer is not what is on record for its key, and do not take it from the cache again."""
    for layer in (layer for plan in plans for layer in plan.layers):
        try:
            known.confirm(layer, blobs[layer.key])
        except NotReproducibleError:
            store.layer(layer.key).unlink(missing_ok=True)
            raise


def _folder(project: Project, cell: Cell, output: Path | None, *, several: bool) -> Path:
    if output is None:
        return project.build_folder(cell)
    return output / cell.slug if several else output


def _lay_out(plan: Plan, blobs: Mapping[Sha256, Blob], project: Project, folder: Path) -> Built:
    image = make_image(plan, [blobs[layer.key] for layer in plan.layers])
    layout = write_layout(image, plan.cell.slug, project.store, folder)
    with writing_output(folder):
        write_text_atomically(folder / LAST_PLAN, plan.model_dump_json(indent=1))
    return Built(plan, image, layout)


def lay_out_if_here(project: Project, plan: Plan, image: Image) -> bool:
    """Lay an image out like a build does, if all of its layers are on this machine."""
    if not all(project.store.blob(blob.digest).exists() for blob in image.layers):
        return False
    blobs = {layer.key: blob for layer, blob in zip(plan.layers, image.layers, strict=True)}
    _lay_out(plan, blobs, project, project.build_folder(plan.cell))
    return True


def make_layers(
    project: Project,
    cells: Sequence[Cell],
    watch: Watcher,
    say: Say,
    *,
    locked_only: bool,
    workers: int | None = None,
    known: KnownLayers | None = None,
    elsewhere: Elsewhere | None = None,
) -> tuple[list[Plan], dict[Sha256, Blob]]:
    """Plan, and build the layers that are missing; with a record (`known`), all must be what it says.

    What downloads or builds is imported only when needed.
    """
    plans = [make_plan(project, cell) for cell in cells]
    if known is not None:
        known.refuse_unwritable(plans)
    watch.layers(_layers(plans))
    blobs, missing = _recall(plans, project.store, elsewhere)
    wanted: Callable[[Layer], Sequence[Wanted]] = lambda _: ()  # noqa: E731 - replaced below where there are inputs
    if any(layer.inputs for layer in missing):
        from imagefactory.build.inputs import LayerInputs  # noqa: PLC0415

        sources = LayerInputs(project, cells)
        wanted = sources.wanted
        sources.refuse_unfit_mods({plan.cell for plan in plans if _lacks_mods(plan, missing)})
        if not locked_only and sources.replace_vanished_debs(plans, watch, say):
            plans = [make_plan(project, cell) for cell in cells]
            watch.layers(_layers(plans))
            blobs, missing = _recall(plans, project.store, elsewhere)
        sources.take_excerpts(missing, say)
    for key, blob in blobs.items():
        watch.state(key, "cached", blob.size, blob.size)
    if missing:
        from imagefactory.build.engines.embedded import build_layers  # noqa: PLC0415

        expected = known.among(missing) if known is not None else {}
        blobs |= build_layers(missing, wanted, project.store, watch, workers=workers, expected=expected)
    if known is not None:
        confirm(known, plans, blobs, project.store)
    return plans, blobs


def _lacks_mods(plan: Plan, missing: Sequence[Layer]) -> bool:
    keys = {layer.key for layer in missing if layer.kind == "mod"}
    return any(layer.key in keys for layer in plan.layers)


def _layers(plans: Iterable[Plan]) -> list[Layer]:
    """List the layers of plans, each once."""
    return list({layer.key: layer for plan in plans for layer in plan.layers}.values())


def _recall(
    plans: Sequence[Plan], store: Store, elsewhere: Elsewhere | None
) -> tuple[dict[Sha256, Blob], list[Layer]]:
    """Divide the layers of plans into those that are here, or need not be, and those that have to be made."""
    blobs: dict[Sha256, Blob] = {}
    missing: list[Layer] = []
    for layer in _layers(plans):
        blob = read_blob_record(layer.key, store)
        if blob is None:
            missing.append(layer)
        else:
            blobs[layer.key] = blob
            mark_layer_used(layer.key, blob, store)
    if elsewhere is not None and missing:
        spared = elsewhere(missing)
        blobs |= spared
        missing = [layer for layer in missing if layer.key not in spared]
    return blobs, missing


def built_layouts(
    project: Project, targets: Sequence[str], *, one: bool = False, stale: bool = False
) -> list[tuple[Cell, Layout, str]]:
    """Find the images that were built for targets, each with the name it goes by in an engine.

    An image that was built before the matrix, a lock, a mod or the serve program changed is refused unless `stale`.
    """
    cells = (
        [select_one(project.matrix, targets[0] if targets else "")]
        if one
        else select(project.matrix, targets)
    )
    repository = project.matrix.effective_registry.rpartition("/")[2].lower()
    found = []
    for cell in cells:
        layout = Layout(project.build_folder(cell))
        layout.manifest_digest()  # fails with a remedy when there is no image
        if not stale:
            _refuse_stale(project, cell)
        found.append((cell, layout, f"{repository}:{cell.slug}"))
    return found


def _refuse_stale(project: Project, cell: Cell) -> None:
    built, current = last_plan(project.build_folder(cell)), make_plan(project, cell)
    # A build that had to use successors of vanished packages has another plan, and says so itself.
    if built is None or (built.key != current.key and built.locked):
        raise ImageMissingError(
            f"The image of {cell} is not up to date.",
            where=project.build_folder(cell),
            why="What it is made of changed after it was built (`invoke plan --diff` says what).",
            fix=f"Run `invoke build --target {cell}` again.",
        )


def remember(
    project: Project, known: KnownLayers, plans: Sequence[Plan], blobs: Mapping[Sha256, Blob]
) -> None:
    """Record what new layers came out as, and forget those that no locked target has any more."""
    found = {
        layer.key: (f"{layer.kind} {layer.name}", blobs[layer.key])
        for plan in plans
        for layer in plan.layers
        if known.blob(layer.key) is None
    }
    wheels = _new_wheel_records(project.store, known, plans)
    if not found and not wheels:
        return
    as_locked = Project(project.root, project.store)  # without successors of vanished packages
    locked_layers = [layer for plan in locked_plans(as_locked) for layer in plan.layers]
    needed = {layer.key for layer in locked_layers}
    needed |= {item.sha256 for layer in locked_layers if layer.kind == "mod" for item in layer.inputs}
    # Another build may have added to the record since this one read it.
    with locked(project.store.root / ".recording"):
        KnownLayers(project.known_layers).record(found, needed, wheels)


def _new_wheel_records(
    store: Store, known: KnownLayers, plans: Sequence[Plan]
) -> dict[Sha256, tuple[str, Sha256]]:
    """Hash the RECORD of wheels that mods change, while they are here as a whole and were checked."""
    inputs = {
        item.sha256: item.name
        for layer in _layers(plans)
        if layer.kind == "mod"
        for item in layer.inputs
        if known.wheel_record(item.sha256) is None and store.download(item.sha256).exists()
    }
    if not inputs:
        return {}
    from imagefactory.build.layers.wheel_excerpt import record_sha256  # noqa: PLC0415

    hashed = {sha256: record_sha256(store.download(sha256)) for sha256 in inputs}
    return {sha256: (inputs[sha256], record) for sha256, record in hashed.items() if record is not None}
