"""Building targets: fetch what the locks name, build the layers that are missing, lay out the images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import requests

from imagefactory.cells import Cell
from imagefactory.content import Sha256
from imagefactory.downloads import PARALLEL, Wanted, fetch
from imagefactory.engines.embedded import Watcher, build_layers
from imagefactory.errors import DownloadError, UnknownNameError
from imagefactory.layers.build import read_blob_record
from imagefactory.known import KnownLayers
from imagefactory.locking import locked_cells
from imagefactory.locks import BaseLock, LockedDeb, LockedWheel, write_text_atomically
from imagefactory.oci.gzip import Blob
from imagefactory.oci.image import Image, make_image
from imagefactory.oci.layout import Layout, write_layout
from imagefactory.plan import Layer, Plan, make_plan
from imagefactory.planview import LAST_PLAN
from imagefactory.project import Project
from imagefactory.resolve.debs import deb_locations, successor
from imagefactory.resolve.debian_index import read_index
from imagefactory.resolve.index import IndexConfig, Indexes, reachable
from imagefactory.resolve.mirrors import DebianMirrors
from imagefactory.targets import select

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
        sources = Sources(project, cells)
        plans = [make_plan(project, cell) for cell in cells]
        if not locked_only and sources.replace_vanished_debs(plans, say):
            plans = [make_plan(project, cell) for cell in cells]
        known = KnownLayers(project.known_layers)
        blobs = build_layers(
            (layer for plan in plans for layer in plan.layers), sources.wanted, project.store, watch, workers=workers
        )
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


class Sources:
    """Where the inputs of layers are found: wheels on indexes, debs on mirrors. Asked only for what is missing."""

    def __init__(self, project: Project, cells: Sequence[Cell]) -> None:
        self.project = project
        self.cells = cells
        self._wheels = {wheel.sha256: wheel for cell in cells for wheel in project.wheel_lock(cell).wheels}

    def wanted(self, layer: Layer) -> list[Wanted]:
        """List the files that a layer is made from, with where to look for them."""
        debs = {deb.sha256: (lock, deb) for lock in self._base_locks() for deb in lock.debs}
        return [
            self._wheel(self._wheels[item.sha256])
            if item.sha256 in self._wheels
            else self._deb(*debs[item.sha256])
            for item in layer.inputs
        ]

    def replace_vanished_debs(self, plans: Sequence[Plan], say: Say) -> bool:
        """Take the successors of locked debs that no mirror has any more; say whether there were any.

        A security update removes what it replaces. That must not stop somebody who builds for the first time; the
        image is marked as not locked, and is never published.
        """
        changed = False
        for plan in plans:
            if read_blob_record(plan.layers[0].key, self.project.store) is not None:
                continue
            lock = self.project.base_lock(plan.cell)
            debs = self._available_debs(lock, say)
            if debs != lock.debs:
                changed = True
                self.project.substitute_base_lock(plan.cell, lock.model_copy(update={"debs": debs, "integrity": ""}))
        return changed

    def _available_debs(self, lock: BaseLock, say: Say) -> tuple[LockedDeb, ...]:
        with requests.Session() as session, ThreadPoolExecutor(PARALLEL) as pool:

            def is_there(deb: LockedDeb) -> bool:
                try:
                    fetch(self._deb(lock, deb), self.project.store, session, lambda _: None)
                except DownloadError:
                    return False
                return True

            there = list(pool.map(is_there, lock.debs))
        if all(there):
            return lock.debs
        debian = self.project.matrix.bases[lock.base].debian
        index = read_index(debian=debian, platform=lock.platform, mirrors=self._mirrors(lock), say=say)
        replaced = tuple(
            deb if here else successor(deb, index) for deb, here in zip(lock.debs, there, strict=True)
        )
        for old, new in zip(lock.debs, replaced, strict=True):
            if old != new:
                say(f"{old.name} {old.version} has vanished from every mirror; {new.version} takes its place")
        say("The image is not what the lock says: it is labelled locked=no and cannot be published.")
        return replaced

    def _base_locks(self) -> list[BaseLock]:
        return [self.project.base_lock(cell) for cell in self.cells]

    @cached_property
    def _indexes(self) -> Indexes:
        archs = sorted({cell.arch for cell in self.cells})
        extra = [url for arch in archs for url in self.project.matrix.archs[arch].indexes if reachable(url)]
        return Indexes(IndexConfig.from_environment().with_extra(extra))

    def _mirrors(self, lock: BaseLock) -> DebianMirrors:
        return DebianMirrors.discover(self.project.matrix.bases[lock.base].debian)

    def _wheel(self, wheel: LockedWheel) -> Wanted:
        def locations() -> list[str]:
            return [
                offer.url
                for offer in self._indexes.files(wheel.name)
                if offer.file == wheel.file and offer.sha256 in (None, wheel.sha256)
            ]

        return Wanted(wheel.file, wheel.sha256, wheel.size, locations)

    def _deb(self, lock: BaseLock, deb: LockedDeb) -> Wanted:
        return Wanted(deb.file, deb.sha256, deb.size, lambda: deb_locations(deb, lock.suites, self._mirrors(lock)))


def _remember(project: Project, known: KnownLayers, plans: Sequence[Plan], blobs: Mapping[Sha256, Blob]) -> None:
    """Record what new layers came out as, and forget those that no locked target has any more."""
    found = {layer.key: (f"{layer.kind} {layer.name}", blobs[layer.key]) for plan in plans for layer in plan.layers}
    needed = {
        layer.key
        for cell in locked_cells(project)
        if project.is_locked(cell)
        for layer in make_plan(project, cell).layers
    }
    known.record(found, needed)
