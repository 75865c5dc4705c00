"""Records the digests of layers in locks/layers.toml, and checks builds against that record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from filelock import FileLock

from imagefactory.errors.layers import NotReproducibleError
from imagefactory.locks.gpu_libraries import SlimLock, SlimmedWheel
from imagefactory.locks.project import Project
from imagefactory.oci.blob import Blob
from imagefactory.plan.built_layers import read_slimmed
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import locked_plans
from imagefactory.plan.plan import Layer, Plan, WheelLayer
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256
from imagefactory.store.hashed import refuse_changed


def confirm(known: KnownLayers, plans: Iterable[Plan], blobs: Mapping[Sha256, Blob], store: Store) -> None:
    """Raise an error if a layer differs from the record of its key, and drop it from the cache."""
    for layer in (layer for plan in plans for layer in plan.layers):
        try:
            known.confirm(layer, blobs[layer.key])
        except NotReproducibleError:
            store.layer(layer.key).unlink(missing_ok=True)
            raise


def remember(
    project: Project, known: KnownLayers, plans: Sequence[Plan], blobs: Mapping[Sha256, Blob]
) -> None:
    """Record the new layers of locked plans, and drop layers that no locked target needs."""
    found = {
        layer.key: (f"{layer.kind} {layer.name}", blobs[layer.key])
        for plan in plans
        for layer in plan.layers
        if known.blob(layer.key) is None
    }
    wheels = _new_wheel_records(project.store, known, plans)
    slimmed = _slimmed(project.store, plans)
    if not found and not wheels and all(one in project.slim_lock.wheels for one in slimmed):
        return
    locked_layers = [layer for plan in locked_plans(project, plans) for layer in plan.layers]
    needed = {layer.key for layer in locked_layers}
    needed |= {item.sha256 for layer in locked_layers if layer.kind == "mod" for item in layer.inputs}
    # Another build may have added to the record since this one read it.
    with FileLock(project.store.root / ".recording"):
        KnownLayers(project.known_layers).record(found, needed, wheels)
        _record_slimmed(project, slimmed, locked_layers)


def _slimmed(store: Store, plans: Iterable[Plan]) -> list[SlimmedWheel]:
    """Return what was taken out of the wheels of layers that were built here."""
    keys = {layer.key for plan in plans for layer in plan.layers if isinstance(layer, WheelLayer)}
    return [record for key in sorted(keys) for record in read_slimmed(key, store)]


def _record_slimmed(project: Project, found: Iterable[SlimmedWheel], layers: Iterable[Layer]) -> None:
    """Add what was taken out of wheels to the record, and drop wheels that no locked target has."""
    needed = {
        (item.sha256, layer.settings.slim.chip, layer.settings.slim.rule)
        for layer in layers
        if isinstance(layer, WheelLayer) and layer.settings.slim is not None
        for item in layer.inputs
    }
    path = SlimLock.path(project.locks)
    old = SlimLock.read(path) if path.exists() else SlimLock(made_from={})
    records = {(one.sha256, one.chip, one.rule): one for one in (*old.wheels, *found)}
    kept = [record for key, record in records.items() if key in needed]
    if kept or old.wheels:
        ordered = tuple(sorted(kept, key=lambda one: (one.file, one.sha256, one.chip, one.rule)))
        SlimLock(made_from={}, wheels=ordered).write(path)


def _new_wheel_records(
    store: Store, known: KnownLayers, plans: Iterable[Plan]
) -> dict[Sha256, tuple[str, Sha256]]:
    """Hash the RECORD of each wheel that mods change, if the store has the whole wheel."""
    inputs = {
        item.sha256: item.name
        for plan in plans
        for layer in plan.layers
        if layer.kind == "mod"
        for item in layer.inputs
        if known.wheel_record(item.sha256) is None and store.download(item.sha256).exists()
    }
    if not inputs:
        return {}
    from imagefactory.build.layers.wheel_excerpt import record_sha256  # noqa: PLC0415 - only with new mods

    refuse_changed({sha256: store.download(sha256) for sha256 in inputs})
    hashed = {sha256: record_sha256(store.download(sha256)) for sha256 in inputs}
    return {sha256: (inputs[sha256], record) for sha256, record in hashed.items() if record is not None}
