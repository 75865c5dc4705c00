"""From plans to images.

Modules that download or build are imported only where they are needed: mostly, everything is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefactory.assemble.images_here import lay_out
from imagefactory.assemble.layer_records import confirm, remember
from imagefactory.assemble.watch import Unwatched, Watcher
from imagefactory.errors import LockError, MachineError
from imagefactory.oci.image import Blob, Image
from imagefactory.oci.layout import Layout
from imagefactory.plan.known_layers import KnownLayers, mark_layers_used, read_blob_record
from imagefactory.plan.make import locked_plans
from imagefactory.plan.plan import Layer, ModLayer, Plan, make_image
from imagefactory.project.project import Project
from imagefactory.store.digests import Sha256

Elsewhere = Callable[[Sequence[Layer]], Mapping[Sha256, Blob]]
"""Takes layers that are not here; returns those that need not be built, with what they come out as."""


@dataclass(frozen=True)
class Built:
    """A finished image and where it is laid out."""

    plan: Plan
    image: Image
    layout: Layout


@dataclass(frozen=True)
class BuildRun:
    """What a build was asked for."""

    project: Project
    plans: Sequence[Plan]
    watch: Watcher
    known: KnownLayers | None = None
    """The record that layers must match, and are added to; without it, all are inspected as if nothing were known."""
    workers: int | None = None
    output: Path | None = None  # where the only image goes, if not into its folder in build/
    suffix: str = ""  # added to the names of folders
    elsewhere: Elsewhere | None = None

    @property
    def layers(self) -> list[Layer]:
        """The layers of all plans, each once."""
        return list({layer.key: layer for plan in self.plans for layer in plan.layers}.values())

    def folder(self, plan: Plan) -> Path:
        folder = self.project.build_folder(plan.cell)
        return self.output or folder.with_name(f"{folder.name}{self.suffix}")


def assemble(run: BuildRun) -> list[Built]:
    """Build the images of plans, lay them out, and record their layers."""
    with run.project.store.in_use():
        run.project.store.sweep()
        blobs = make_layers(run)
        built = []
        for plan in run.plans:
            image = make_image(plan, [blobs[layer.key] for layer in plan.layers])
            built.append(Built(plan, image, lay_out(run.project, plan, image, run.folder(plan))))
        if run.known is not None:
            _record(run.project, run.known, built, blobs)
    return built


def make_layers(run: BuildRun) -> dict[Sha256, Blob]:
    """Build the layers of plans that are missing, and return what all of them come out as."""
    store = run.project.store
    run.watch.layers(run.layers)
    blobs = {layer.key: blob for layer in run.layers if (blob := read_blob_record(layer.key, store))}
    mark_layers_used(blobs, store)
    missing = [layer for layer in run.layers if layer.key not in blobs]
    if run.elsewhere is not None and missing:
        blobs |= run.elsewhere(missing)
    for key, blob in blobs.items():
        run.watch.state(key, "cached", blob.size, blob.size)
    if missing := [layer for layer in missing if layer.key not in blobs]:
        blobs |= _build(run, missing)
    if run.known is not None:
        confirm(run.known, run.plans, blobs, store)
    return blobs


def _build(run: BuildRun, missing: Sequence[Layer]) -> dict[Sha256, Blob]:
    """Build layers, while what they are made from is downloaded; a mod that does not fit stops that at once."""
    from imagefactory.assemble.applied_mods import apply_mods, refuse_foreign_files  # noqa: PLC0415
    from imagefactory.assemble.inputs import Downloads, LayerInputs  # noqa: PLC0415
    from imagefactory.assemble.layers.layer_blob import LayerWork  # noqa: PLC0415
    from imagefactory.assemble.parallel import build_layers  # noqa: PLC0415

    store = run.project.store
    slimmed = run.project.slim_lock.wheels if run.known is not None else ()
    inputs = LayerInputs(run.project, [plan.cell for plan in run.plans])
    inputs.require_compiled(missing)
    # The wheels of mods come first, because mods are applied before any layer is built; then the largest layers.
    ordered = sorted(missing, key=lambda layer: (not isinstance(layer, ModLayer), -layer.unpacked))
    with Downloads(inputs, ordered, run.watch) as downloads:
        mods = apply_mods(missing, downloads)

        def work_of(layer: Layer) -> LayerWork:
            hashes = {file.sha256 for file in layer.inputs}
            return LayerWork(
                layer,
                {sha256: store.download(sha256) for sha256 in hashes},
                run.known.blob(layer.key) if run.known is not None else None,
                mods.files.get(layer.key, ()),
                tuple((deb, store.download(deb.sha256)) for deb in inputs.python_of(layer)),
                tuple(record for record in slimmed if record.sha256 in hashes),
            )

        def made(layers: Iterable[Layer]) -> dict[Sha256, Blob]:
            return build_layers(map(work_of, layers), store, run.watch, waits=downloads.of, workers=run.workers)

        # Layers of mods come last: the check before them reads every wheel of the image.
        built = made(layer for layer in missing if not isinstance(layer, ModLayer))
        refuse_foreign_files(mods.added, downloads)
        built |= made(layer for layer in missing if isinstance(layer, ModLayer))
    # They were hashed while they were written.
    store.hashed_files().remember(store.blob(blob.digest) for blob in built.values())
    return built


def record_models(project: Project, repositories: Collection[str]) -> int:
    """Record the new layers of locked models that name one of these repositories; return how many.

    They describe the model, and need no other files: no image has to be built for them.
    """
    models = project.matrix.models
    named = [name for name, model in models.items() if not set(repositories).isdisjoint(model.repositories)]
    known = KnownLayers(project.known_layers)
    plans = (plan.model_copy(update={"layers": plan.layers[-1:]}) for plan in locked_plans(project, named))
    new = [plan for plan in plans if known.blob(plan.layers[-1].key) is None]
    if not new:
        return 0
    blobs = make_layers(BuildRun(project, new, Unwatched(), known))
    remember(project, known, new, blobs)
    return len(blobs)


def _record(project: Project, known: KnownLayers, built: Sequence[Built], blobs: Mapping[Sha256, Blob]) -> None:
    """Record the new layers; if that fails, say that the images themselves are not lost."""
    try:
        remember(project, known, [build.plan for build in built], blobs)
    except (OSError, MachineError) as error:
        images = ", ".join(f"{build.image.digest} in {build.layout.folder}" for build in built)
        reason = error.why if isinstance(error, MachineError) else error.strerror or str(error)
        raise LockError(
            "record-not-written",
            "The image is built, but could not be recorded.",
            where=project.known_layers,
            why=f"{reason}. Built: {images}.",
            fix="The image is good to use. To record it, make the file writable and build again: all is cached.",
        ) from None
