"""Keeps locks/layers.toml and locks/slim.toml: what layers came out as, and what was taken out of their wheels."""

from collections.abc import Iterable, Mapping, Sequence

from filelock import FileLock

from imagefactory.errors import TrustError
from imagefactory.oci.image import Blob
from imagefactory.plan.known_layers import KnownLayers, read_slimmed
from imagefactory.plan.make import locked_plans
from imagefactory.plan.plan import Plan, WheelLayer
from imagefactory.project.locks.kernels import SlimLock, SlimmedWheel
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256


def confirm(known: KnownLayers, plans: Iterable[Plan], blobs: Mapping[Sha256, Blob], store: Store) -> None:
    """Raise an error if a layer differs from the record of its key, and drop it from the cache."""
    for layer in (layer for plan in plans for layer in plan.layers):
        try:
            known.confirm(layer, blobs[layer.key])
        except TrustError:
            store.layer(layer.key).unlink(missing_ok=True)
            raise


def remember(project: Project, known: KnownLayers, plans: Sequence[Plan], blobs: Mapping[Sha256, Blob]) -> None:
    """Add the new layers of plans to the record, and what was taken out of their wheels."""
    new = {
        layer.key: (f"{layer.kind} {layer.name}", blobs[layer.key])
        for plan in plans
        for layer in plan.layers
        if known.blob(layer.key) is None
    }
    if not new and SlimLock.path(project.locks).exists():
        return
    wheels = {layer.key for plan in plans for layer in plan.layers if isinstance(layer, WheelLayer)}
    slimmed = [record for key in sorted(wheels) for record in read_slimmed(key, project.store)]
    # Another build may have added to the record since this one read it.
    with FileLock(project.store.root / ".recording"):
        # The layers come last: with all of them on record, the next build would not write the wheels (see above).
        _write_slimmed(project, [*_slimmed(project), *slimmed])
        KnownLayers(project.known_layers).add(new)


def drop_unneeded(project: Project) -> int:
    """Drop the records of layers and wheels that no locked target has any more; return how many layers."""
    layers = [layer for plan in locked_plans(project) for layer in plan.layers]
    needed = {
        (wheel.sha256, layer.settings.slim.chip, layer.settings.slim.rule)
        for layer in layers
        if isinstance(layer, WheelLayer) and layer.settings.slim is not None
        for wheel in layer.inputs
    }
    with FileLock(project.store.root / ".recording"):
        dropped = KnownLayers(project.known_layers).keep({layer.key for layer in layers})
        records = [record for record in _slimmed(project) if (record.sha256, record.chip, record.rule) in needed]
        _write_slimmed(project, records)
    return dropped


def unrecorded(project: Project) -> list[str]:
    """List the locked targets that no night can publish yet, since a layer of theirs is not on record."""
    known = KnownLayers(project.known_layers)
    return [plan.cell.full_target for plan in locked_plans(project) if known.image(plan) is None]


def _slimmed(project: Project) -> list[SlimmedWheel]:
    path = SlimLock.path(project.locks)
    return list(SlimLock.read(path).wheels) if path.exists() else []


def _write_slimmed(project: Project, records: Sequence[SlimmedWheel]) -> None:
    by_key = {(record.sha256, record.chip, record.rule): record for record in records}
    ordered = sorted(by_key.values(), key=lambda record: (record.file, record.sha256, record.chip, record.rule))
    if ordered != _slimmed(project):
        SlimLock(made_from={}, wheels=tuple(ordered)).write(SlimLock.path(project.locks))
