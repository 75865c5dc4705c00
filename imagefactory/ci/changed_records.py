"""Rebuilds the records of layers and slimmed libraries that a change edits, from the lock and without the cache.

A build skips a layer whose recorded digest the registry has. So a record is believed everywhere once it is committed,
and is checked before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from imagefactory.assemble.assemble import BuildRun, make_layers
from imagefactory.assemble.watch import Watcher
from imagefactory.ci.jobs import MARGIN, refuse_full, space_needed
from imagefactory.ci.pull_request import worktree
from imagefactory.errors import FactoryError, TrustError
from imagefactory.oci.image import Blob
from imagefactory.plan.known_layers import KnownLayers, RecordedLayer, read_slimmed
from imagefactory.plan.make import locked_plans
from imagefactory.plan.plan import Plan, WheelLayer
from imagefactory.project.locks.kernels import SlimLock
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256


def changed_records(project: Project, base: str) -> dict[Sha256, RecordedLayer]:
    """List the layers whose record in a checkout is new or different since a commit.

    That includes layers whose slimmed libraries have another record.
    """
    now = KnownLayers(project.known_layers)
    with worktree(project.root, base) as folder:
        older = Project(folder, project.store)
        try:
            before, slimmed = KnownLayers(older.known_layers).layers, older.slim_lock.wheels
        except FactoryError:  # written for another version of the library: everything is new then
            return dict(now.layers)
    layers = {key: record for key, record in now.layers.items() if before.get(key) != record}
    changed = {one.sha256 for one in project.slim_lock.wheels if one not in slimmed}
    for layer in (layer for plan in locked_plans(project) for layer in plan.layers) if changed else ():
        if isinstance(layer, WheelLayer) and not changed.isdisjoint(item.sha256 for item in layer.inputs):
            layers |= {layer.key: now.layers[layer.key]} if layer.key in now.layers else {}
    return layers


def check_records(project: Project, changed: Mapping[Sha256, RecordedLayer], watch: Watcher) -> None:
    """Rebuild what changed; raise an error with every record that something else comes out for."""
    parts = list(_parts(project, changed))
    refuse_full(project.store.root, max([MARGIN, *(space_needed([part]) for part in parts)]))
    refuted = list(_refuted_layers(project, changed, parts, watch))
    if refuted:
        raise TrustError(
            "record-refuted",
            f"{len(refuted)} changed record{'s do' if len(refuted) > 1 else ' does'} not hold.",
            where=project.known_layers,
            why="; ".join(refuted),
            fix="Do not merge this. Restore the file from the base commit, run `./inv build --target` with each "
            "changed target, and commit what it records.",
        )


def _parts(project: Project, layers: Collection[Sha256]) -> Iterator[Plan]:
    left = set(layers)
    for plan in locked_plans(project):
        wanted = {layer.key: layer for layer in plan.layers if layer.key in left}
        left -= wanted.keys()
        if wanted:
            yield plan.model_copy(update={"layers": tuple(wanted.values())})


def _refuted_layers(
    project: Project, layers: Mapping[Sha256, RecordedLayer], parts: Iterable[Plan], watch: Watcher
) -> Iterator[str]:
    left = dict(layers)
    for part in parts:
        with project.store.scratch() as scratch:
            fresh = replace(project, store=Store(scratch / "store"))
            built = make_layers(BuildRun(fresh, [part], watch))
            slimmed = {one.sha256: one for key in built for one in read_slimmed(key, fresh.store)}
        for layer in part.layers:
            if not isinstance(layer, WheelLayer) or layer.settings.slim is None:
                continue
            chip, rule = layer.settings.slim.chip, layer.settings.slim.rule
            for item in layer.inputs:
                if project.slim_lock.find(item.sha256, chip, rule) != slimmed.get(item.sha256):
                    yield f"{item.name}: {SlimLock.file} has something else about it than a rebuild gives"
        for key, blob in built.items():
            record = left.pop(key)
            if record.blob != blob:
                yield f"{record.name} (key {key}): recorded {_said(record.blob)}, a rebuild gives {_said(blob)}"
    yield from (f"{record.name} (key {key}): no locked target has it" for key, record in left.items())


def _said(blob: Blob) -> str:
    return f"{blob.digest} (diff_id {blob.diff_id}, {blob.size} bytes, {blob.unpacked} unpacked)"
