"""From plans to images: fetch what the locks name, build the missing layers, write OCI layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagefactory.build.recording import confirm, remember
from imagefactory.build.watch import Watcher
from imagefactory.environment.progress import Say
from imagefactory.errors.locks import RecordNotWrittenError
from imagefactory.errors.store import DiskFullError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.oci.blob import Blob
from imagefactory.oci.image import Image
from imagefactory.oci.layout import Layout, refuse_unusable, write_layout, writing_output
from imagefactory.plan.built_layers import mark_layers_used, read_blob_record
from imagefactory.plan.changes import LAST_PLAN
from imagefactory.plan.image_documents import make_image
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Layer, Plan
from imagefactory.store.atomic import write_text
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256

if TYPE_CHECKING:
    from imagefactory.build.inputs import LayerInputs

Elsewhere = Callable[[Sequence[Layer]], Mapping[Sha256, Blob]]
"""Takes layers that are not here; returns those that need not be built, with what they come out as."""


@dataclass(frozen=True)
class Built:
    """A finished image and where it is laid out."""

    plan: Plan
    image: Image
    layout: Layout


def assemble(
    project: Project,
    plans: Sequence[Plan],
    watch: Watcher,
    say: Say,
    *,
    locked_only: bool = False,
    output: Path | None = None,
    workers: int | None = None,
    record: bool = True,
    suffix: str = "",
) -> list[Built]:
    """Build the images of plans; layers that several of them share are built once.

    Unless `locked_only`, a Debian package that has vanished from every mirror is replaced by its successor; the plan of
    the result then differs from the one handed in. With `record`, layers must match the record, and new ones are added
    to it; without, they are built and inspected as if nothing were known of them. `suffix` is added to the names of
    folders.
    """
    known = KnownLayers(project.known_layers) if record else None
    several = len(plans) > 1
    folders = {plan.cell: _folder(project, plan.cell, output, suffix, several=several) for plan in plans}
    for folder in folders.values():
        refuse_unusable(folder)
    with project.store.in_use():
        project.store.sweep()
        inputs = None
        if not locked_only:
            plans, inputs = _replace_vanished(project, plans, watch, say)
        blobs = make_layers(project, plans, watch, say, known=known, workers=workers, inputs=inputs)
        built = [_lay_out(plan, blobs, project, folders[plan.cell]) for plan in plans]
    if known is not None:
        with _recording(project, built):
            remember(project, known, [plan for plan in plans if plan.locked], blobs)
    return built


@contextmanager
def _recording(project: Project, built: Sequence[Built]) -> Iterator[None]:
    """If the record cannot be written, report that the images themselves are not lost."""
    try:
        yield
    except (OSError, DiskFullError) as error:
        images = ", ".join(f"{image.image.digest} in {image.layout.folder}" for image in built)
        reason = error.why if isinstance(error, DiskFullError) else error.strerror or str(error)
        raise RecordNotWrittenError(
            "The image is built, but could not be recorded.",
            where=project.known_layers,
            why=f"{reason}. Built: {images}.",
            fix="The image is good to use. To record it, make the file writable and build again: all is cached.",
        ) from None


def _folder(project: Project, cell: Cell, output: Path | None, suffix: str, *, several: bool) -> Path:
    if output is None:
        folder = project.build_folder(cell)
        return folder.with_name(f"{folder.name}{suffix}")
    return output / f"{cell.slug}{suffix}" if several else output


def _lay_out(plan: Plan, blobs: Mapping[Sha256, Blob], project: Project, folder: Path) -> Built:
    image = make_image(plan, [blobs[layer.key] for layer in plan.layers])
    layout = write_layout(image, plan.cell.slug, project.store, folder)
    with writing_output(folder):
        write_text(folder / LAST_PLAN, plan.model_dump_json(indent=1))
    return Built(plan, image, layout)


def lay_out_if_here(project: Project, plan: Plan, image: Image) -> bool:
    """Lay an image out as a build does, if all of its layers are on this machine."""
    if not all(project.store.blob(blob.digest).exists() for blob in image.layers):
        return False
    blobs = {layer.key: blob for layer, blob in zip(plan.layers, image.layers, strict=True)}
    _lay_out(plan, blobs, project, project.build_folder(plan.cell))
    return True


def _replace_vanished(
    project: Project, plans: Sequence[Plan], watch: Watcher, say: Say
) -> tuple[Sequence[Plan], LayerInputs | None]:
    """Plan anew where a Debian package has vanished from every mirror; without a base to build, do nothing."""
    if all(read_blob_record(plan.layers[0].key, project.store) for plan in plans):
        return plans, None
    watch.layers(_layers(plans))
    inputs = _find_inputs(project, plans, _recall(plans, project.store, None)[1], say)
    bases = inputs.successors(plans, watch, say)
    if not bases:
        return plans, inputs
    plans = [
        make_plan(project, plan.cell, base=bases[plan.cell]) if plan.cell in bases else plan for plan in plans
    ]
    return plans, inputs.with_bases(bases)


def make_layers(
    project: Project,
    plans: Sequence[Plan],
    watch: Watcher,
    say: Say,
    *,
    known: KnownLayers | None = None,
    elsewhere: Elsewhere | None = None,
    workers: int | None = None,
    inputs: LayerInputs | None = None,
) -> dict[Sha256, Blob]:
    """Build the layers of plans that are missing; with a record (`known`), all of them must match it.

    Whoever hands in `inputs` has already applied the mods. Modules that download or build are imported only if needed.
    """
    if known is not None:
        known.refuse_unwritable(plans)
    watch.layers(_layers(plans))
    blobs, missing = _recall(plans, project.store, elsewhere)
    if any(layer.inputs for layer in missing):
        inputs = inputs or _find_inputs(project, plans, missing, say)
    for key, blob in blobs.items():
        watch.state(key, "cached", blob.size, blob.size)
    if missing:
        from imagefactory.build.parallel import build_layers  # noqa: PLC0415

        built = build_layers(
            missing,
            inputs.wanted if inputs else lambda _: (),
            project.store,
            watch,
            workers=workers,
            expected=known.among(missing) if known is not None else {},
            mod_files=inputs.mod_files if inputs else {},
            pythons=inputs.pythons(missing) if inputs else {},
            slimmed=project.slim_lock if known is not None else None,
        )
        blobs |= built
        # They were hashed while they were written.
        project.store.hashed_files().remember(project.store.blob(blob.digest) for blob in built.values())
    if known is not None:
        confirm(known, plans, blobs, project.store)
    return blobs


def _find_inputs(project: Project, plans: Sequence[Plan], missing: Sequence[Layer], say: Say) -> LayerInputs:
    """Get ready to fetch what layers are made from; a mod that does not fit stops here, before any download."""
    from imagefactory.build.inputs import LayerInputs  # noqa: PLC0415

    inputs = LayerInputs(project, [plan.cell for plan in plans])
    inputs.apply_mods(missing, say)
    return inputs


def _layers(plans: Iterable[Plan]) -> list[Layer]:
    """List the layers of plans, each once."""
    return list({layer.key: layer for plan in plans for layer in plan.layers}.values())


def _recall(
    plans: Sequence[Plan], store: Store, elsewhere: Elsewhere | None
) -> tuple[dict[Sha256, Blob], list[Layer]]:
    """Split the layers of plans into those that are here or need not be, and those that have to be built."""
    blobs: dict[Sha256, Blob] = {}
    missing: list[Layer] = []
    for layer in _layers(plans):
        blob = read_blob_record(layer.key, store)
        if blob is None:
            missing.append(layer)
        else:
            blobs[layer.key] = blob
    mark_layers_used(blobs, store)
    if elsewhere is not None and missing:
        spared = elsewhere(missing)
        blobs |= spared
        missing = [layer for layer in missing if layer.key not in spared]
    return blobs, missing
