"""Where the inputs of layers are found: wheels on indexes, Debian packages on mirrors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, partial

import requests

from imagefactory.build.partial_downloads import take_excerpts
from imagefactory.build.watch import Watcher
from imagefactory.environment.index_config import IndexConfig
from imagefactory.environment.progress import Say
from imagefactory.errors.store import DownloadError
from imagefactory.locks.files import BaseLock, LockedDeb, LockedSource, LockedWheel
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell, arch_of
from imagefactory.mods.preflight import refuse_unfit_mods
from imagefactory.plan.built_layers import read_blob_record
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Input, Layer, Plan
from imagefactory.resolve.base_locks import deb_locations, successor
from imagefactory.resolve.debian_index import read_index
from imagefactory.resolve.mirrors import DebianMirrors
from imagefactory.resolve.wheelhouse.locate import compiled_locations
from imagefactory.store.digests import Sha256
from imagefactory.store.downloads import Downloader, Wanted, fetch
from imagefactory.store.indexes import Indexes, WheelLocation, reachable

NOT_SHARED = (
    "Pull it where it was pushed (`invoke wheels.pull`, FACTORY_REGISTRY names the registry), or put it into a folder "
    "that PIP_FIND_LINKS names. A new compile gives a new file: adopt that with `invoke lock --upgrade`."
)
VANISHED = (
    "Check the network and the configured mirror (`invoke doctor`). If a security update replaced the package, "
    "lock its successor: `invoke lock --upgrade base`."
)


class LayerInputs:
    """Finds the files that layers are made from; asked only for what is missing."""

    def __init__(self, project: Project, cells: Sequence[Cell]) -> None:
        self.project = project
        self.cells = cells
        self._wheels = {wheel.sha256: wheel for cell in cells for wheel in project.wheel_lock(cell).wheels}

    def wanted(self, layer: Layer) -> list[Wanted]:
        """List the files that a layer is made from, with where to look for them."""
        debs = {deb.sha256: (lock, deb) for lock in self._base_locks() for deb in lock.debs}
        found: list[Wanted] = []
        for item in layer.inputs:
            if item.sha256 in self._wheels:
                found.append(self._wheel(self._wheels[item.sha256]))
            elif item.sha256 in debs:
                found.append(self._deb(*debs[item.sha256]))
            else:
                found.append(self._own_file(item))
        return found

    def wheel(self, wheel: LockedWheel) -> Wanted:
        """Say where to look for a locked wheel."""
        return self._wheel(wheel)

    def deb(self, lock: BaseLock, deb: LockedDeb) -> Wanted:
        """Say where to look for a locked Debian package."""
        return self._deb(lock, deb)

    def refuse_unfit_mods(self, cells: Iterable[Cell]) -> None:
        """Try the mods of cells before anything is downloaded or built: one that does not fit stops everything."""
        for cell in sorted(cells):
            self._fetch_compiled(cell)
            refuse_unfit_mods(self.project, cell, self._indexes)

    def take_excerpts(self, missing: Sequence[Layer], say: Say) -> None:
        """Read what mods change out of wheels that nothing else needs, instead of downloading those."""
        if any(layer.kind == "mod" for layer in missing):
            known = KnownLayers(self.project.known_layers)
            take_excerpts(missing, known, self.project.store, self._offers_of, say)

    def _offers_of(self, sha256: Sha256) -> list[WheelLocation]:
        wheel = self._wheels[sha256]
        return [
            offer
            for offer in self._indexes.files(wheel.name)
            if offer.file == wheel.file and offer.sha256 in (None, sha256)
        ]

    def _fetch_compiled(self, cell: Cell) -> None:
        """Bring the compiled wheels of a cell: mods read from them, and no index has them."""
        with requests.Session() as session:
            for wheel in self.project.wheel_lock(cell).wheels:
                if wheel.compiled is not None:
                    fetch(self._wheel(wheel), self.project.store, session, lambda _: None)

    def replace_vanished_debs(self, plans: Sequence[Plan], watch: Watcher, say: Say) -> bool:
        """Take the successors of locked debs that no mirror has any more; say whether there were any.

        A security update removes what it replaces. That must not stop somebody who builds for the first time; the
        image is marked as not locked, and is never published.
        """
        changed = False
        for plan in plans:
            base = plan.layers[0]
            if read_blob_record(base.key, self.project.store) is not None:
                continue
            lock = self.project.base_lock(plan.cell)
            there = self._fetch_debs(lock, base, watch)
            debs = lock.debs if all(there) else self._with_successors(lock, there, say)
            if debs != lock.debs:
                changed = True
                other = lock.model_copy(update={"debs": debs, "integrity": ""})
                self.project.substitute_base_lock(plan.cell, other)
        return changed

    def _fetch_debs(self, lock: BaseLock, base: Layer, watch: Watcher) -> list[bool]:
        """Download the packages of a base; say of each whether it is there."""
        there: list[bool] = []
        fetched = 0
        with Downloader(self.project.store) as downloader:
            futures = [downloader.submit(self._deb(lock, deb), lambda _: None) for deb in lock.debs]
            for deb, future in zip(lock.debs, futures, strict=True):
                try:
                    future.result()
                except DownloadError:  # another failure is not a vanished file
                    there.append(False)
                    continue
                there.append(True)
                fetched += deb.size
                watch.state(base.key, "downloading", fetched, base.download)
        return there

    def _with_successors(self, lock: BaseLock, there: Sequence[bool], say: Say) -> tuple[LockedDeb, ...]:
        debian = self.project.matrix.bases[lock.base].debian
        index = read_index(debian=debian, platform=lock.platform, mirrors=self._mirrors(lock), say=say)
        replaced = tuple(
            deb if here else successor(deb, index) for deb, here in zip(lock.debs, there, strict=True)
        )
        changes = [(old, new) for old, new in zip(lock.debs, replaced, strict=True) if old != new]
        for old, new in changes:
            say(f"{old.name} {old.version} has vanished from every mirror; {new.version} takes its place")
        if changes:
            say("The image is not what the lock says: it is labelled locked=no and cannot be published.")
        return replaced

    def _base_locks(self) -> list[BaseLock]:
        return [self.project.base_lock(cell) for cell in self.cells]

    @cached_property
    def _indexes(self) -> Indexes:
        named = {url for cell in self.cells for url in arch_of(self.project.matrix, cell).indexes}
        extra = [url for url in sorted(named) if reachable(url)]
        return Indexes(IndexConfig.from_environment().with_extra(extra))

    def _mirrors(self, lock: BaseLock) -> DebianMirrors:
        return DebianMirrors.discover(self.project.matrix.bases[lock.base].debian)

    def tool(self, wheel: LockedSource) -> Wanted:
        """Say where to look for a program that the factory itself runs."""
        return self._wheel(wheel)

    def _wheel(self, wheel: LockedWheel | LockedSource) -> Wanted:
        if isinstance(wheel, LockedWheel) and wheel.compiled is not None:
            places = partial(compiled_locations, self.project, wheel)
            return Wanted(wheel.file, wheel.sha256, wheel.size, places, NOT_SHARED)

        def locations() -> list[str]:
            return [
                offer.url
                for offer in self._indexes.files(wheel.name)
                if offer.file == wheel.file and offer.sha256 in (None, wheel.sha256)
            ]

        return Wanted(wheel.file, wheel.sha256, wheel.size, locations)

    def _own_file(self, item: Input) -> Wanted:
        """Take a file of the checkout like any other input: copied into the store, and right only by its hash."""
        path = self.project.root / item.name
        return Wanted(item.name, item.sha256, path.stat().st_size, lambda: [str(path)])

    def _deb(self, lock: BaseLock, deb: LockedDeb) -> Wanted:
        def locations() -> list[str]:
            return deb_locations(deb, lock.suites, self._mirrors(lock))

        return Wanted(deb.file, deb.sha256, deb.size, locations, VANISHED)
