"""Rebuilds the records of layers and slimmed libraries that a change edits, from the lock and without the cache.

A build skips a layer whose recorded digest the registry has. So a record is believed everywhere once it is committed,
and is checked before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import requests

from imagefactory.build.assemble import make_layers
from imagefactory.build.inputs import LayerInputs
from imagefactory.build.layers.wheel_excerpt import record_sha256
from imagefactory.build.watch import Watcher
from imagefactory.environment.progress import Say
from imagefactory.errors import FactoryError
from imagefactory.errors.publishing import RecordRefutedError
from imagefactory.locks.gpu_libraries import SlimLock
from imagefactory.locks.project import Project, locked_cells
from imagefactory.oci.blob import Blob
from imagefactory.plan.built_layers import read_slimmed
from imagefactory.plan.known_layers import KnownLayers, RecordedLayer, RecordedWheel
from imagefactory.plan.make import locked_plans
from imagefactory.plan.plan import Plan, WheelLayer
from imagefactory.publish.automation.disk_space import MARGIN, refuse_full, space_needed
from imagefactory.publish.automation.pull_request import worktree
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256
from imagefactory.store.downloads import fetch

_UNGIVEN = "no locked target has it"
_Record = TypeVar("_Record")


@dataclass(frozen=True)
class ChangedRecords:
    """The records that a commit does not have in this form."""

    layers: Mapping[Sha256, RecordedLayer]
    """Also those whose slimmed libraries have another record."""
    wheels: Mapping[Sha256, RecordedWheel]


def changed_records(project: Project, base: str) -> ChangedRecords:
    """List the records of a checkout that are new or different since a commit."""
    now = KnownLayers(project.known_layers)
    with worktree(project.root, base) as folder:
        older = Project(folder, project.store)
        try:
            before, slimmed = KnownLayers(older.known_layers), older.slim_lock.wheels
        except FactoryError:  # written for another version of the library: everything is new then
            return ChangedRecords(now.layers, now.wheels)
    layers = _new(before.layers, now.layers)
    changed = {one.sha256 for one in project.slim_lock.wheels if one not in slimmed}
    for layer in (layer for plan in locked_plans(project) for layer in plan.layers) if changed else ():
        if isinstance(layer, WheelLayer) and not changed.isdisjoint(item.sha256 for item in layer.inputs):
            layers |= {layer.key: now.layers[layer.key]} if layer.key in now.layers else {}
    return ChangedRecords(layers, _new(before.wheels, now.wheels))


def _new(before: Mapping[Sha256, _Record], now: Mapping[Sha256, _Record]) -> dict[Sha256, _Record]:
    return {key: record for key, record in now.items() if before.get(key) != record}


def check_records(project: Project, changed: ChangedRecords, watch: Watcher, say: Say) -> None:
    """Rebuild what changed; raise RecordRefutedError with every record that something else comes out for."""
    parts = list(_parts(project, changed.layers))
    refuse_full(project.store.root, _space_needed(project, changed, parts))
    # Wheels first: the layers of mods are made from files that are checked against these records.
    refuted = list(_refuted_wheels(project, changed.wheels)) or list(
        _refuted_layers(project, changed.layers, parts, watch, say)
    )
    if refuted:
        raise RecordRefutedError(
            f"{len(refuted)} changed record{'s do' if len(refuted) > 1 else ' does'} not hold.",
            where=project.known_layers,
            why="; ".join(refuted),
            fix="Do not merge this. Restore the file from the base commit, run `invoke build --target` with each "
            "changed target, and commit what it records.",
        )


def _refuted_wheels(project: Project, wheels: Mapping[Sha256, RecordedWheel]) -> Iterator[str]:
    cells = {
        wheel.sha256: cell for cell in locked_cells(project) for wheel in project.wheel_lock(cell).wheels
    }
    for sha256, record in wheels.items():
        if sha256 not in cells:
            yield f"{record.wheel}: {_UNGIVEN}"
            continue
        inputs = LayerInputs(project, [cells[sha256]])
        with project.store.scratch() as scratch, requests.Session() as session:
            wheel = fetch(inputs.wheel_of(sha256), Store(scratch / "store"), session, lambda _: None)
            found = record_sha256(wheel)
        if found != record.record:
            yield f"{record.wheel}: the sha256 of its RECORD is {found}, not {record.record}"


def _parts(project: Project, layers: Collection[Sha256]) -> Iterator[Plan]:
    """Iterate over the plans that give some layers, each with those of its layers that no plan before it has."""
    left = set(layers)
    for plan in locked_plans(project):
        wanted = {layer.key: layer for layer in plan.layers if layer.key in left}
        left -= wanted.keys()
        if wanted:
            yield plan.model_copy(update={"layers": tuple(wanted.values())})


def _space_needed(project: Project, changed: ChangedRecords, parts: Iterable[Plan]) -> float:
    """Return how many GB the largest step takes: what a step leaves is removed before the next one."""
    sizes = [
        wheel.size
        for cell in locked_cells(project)
        for wheel in project.wheel_lock(cell).wheels
        if wheel.sha256 in changed.wheels
    ]
    return max([MARGIN, *(space_needed([part]) for part in parts), *(size / 1e9 + MARGIN for size in sizes)])


def _refuted_layers(
    project: Project,
    layers: Mapping[Sha256, RecordedLayer],
    parts: Iterable[Plan],
    watch: Watcher,
    say: Say,
) -> Iterator[str]:
    left = dict(layers)
    for part in parts:
        with project.store.scratch() as scratch:
            fresh = replace(project, store=Store(scratch / "store"))
            built = make_layers(fresh, [part], watch, say)
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
    yield from (f"{record.name} (key {key}): {_UNGIVEN}" for key, record in left.items())


def _said(blob: Blob) -> str:
    return f"{blob.digest} (diff_id {blob.diff_id}, {blob.size} bytes, {blob.unpacked} unpacked)"
