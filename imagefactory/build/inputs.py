"""Finds what layers are made from: wheels on indexes, Debian packages on mirrors, files of the checkout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from imagefactory.build.applied_mods import WheelSource, apply_mods_of
from imagefactory.build.foreign_files import OtherWheels
from imagefactory.build.layers.debian_python import needed_packages
from imagefactory.build.layers.mod_layer import ModFiles
from imagefactory.build.watch import Watcher
from imagefactory.environment.index_config import IndexConfig
from imagefactory.environment.progress import Say
from imagefactory.errors.layers import NoPythonError
from imagefactory.errors.store import DownloadError
from imagefactory.locks.files import BaseLock, LockedDeb, LockedSource, LockedWheel
from imagefactory.locks.indexed_files import indexed_file, offers_of
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell, arch_of
from imagefactory.matrix.targets import host_machine
from imagefactory.plan.built_layers import read_blob_record
from imagefactory.plan.bytecode import python_packages
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import BytecodeLayer, Input, Layer, ModLayer, ModLink, Plan
from imagefactory.resolve.base_locks import deb_locations, successor
from imagefactory.resolve.debian_index import read_index
from imagefactory.resolve.mirrors import DebianMirrors
from imagefactory.resolve.wheelhouse.share import compiled_locations, from_archive
from imagefactory.store.digests import Sha256
from imagefactory.store.downloads import Downloader, Wanted
from imagefactory.store.indexes import Indexes, WheelLocation, reachable
from images.shipped.mods.manifest import Mod, Variant

NOT_SHARED = (
    "Pull it where it was pushed (`invoke wheels.pull`, FACTORY_REGISTRY names the registry), or put it into a folder "
    "that PIP_FIND_LINKS names. A new compile gives a new file: adopt that with `invoke lock --upgrade`."
)
VANISHED = (
    "Check the network and the configured mirror (`invoke doctor`). If a security update replaced the package, "
    "lock its successor: `invoke lock --upgrade base`."
)


def _is_modded(layer: Layer, item: Input) -> bool:
    """Whether an input is a wheel that mods are applied to, of which a few files may be enough."""
    if isinstance(layer, BytecodeLayer):
        mods = layer.settings.mods
        return mods is not None and item.name in mods.wheels.values()
    return isinstance(layer, ModLayer)


def _has_python(lock: BaseLock, layer: BytecodeLayer) -> bool:
    return layer.settings.package in {
        deb.version for deb in python_packages(layer.settings.python, lock.debs)[:1]
    }


class LayerInputs:
    """Finds the files that layers are made from; only missing layers ask for theirs."""

    def __init__(
        self, project: Project, cells: Sequence[Cell], bases: Mapping[Cell, BaseLock] | None = None
    ) -> None:
        """Prepare for cells; `bases` names base locks that take the place of the checkout's own."""
        self.project = project
        self.cells = cells
        self._bases = bases or {}
        self.mod_files: dict[Sha256, ModFiles] = {}
        self._wheels = {wheel.sha256: wheel for cell in cells for wheel in project.wheel_lock(cell).wheels}

    def wanted(self, layer: Layer) -> list[Wanted]:
        """List the files that a layer is made from, and where to look for them.

        A mod's layer needs only wheels that were read in parts and not yet confirmed. Bytecode also needs a Python.
        """
        debs = {deb.sha256: (lock, deb) for lock in map(self._base, self.cells) for deb in lock.debs}
        found: list[Wanted] = []
        for item in layer.inputs:
            if _is_modded(layer, item) and item.sha256 not in self.mod_files[layer.key].unconfirmed:
                continue
            if item.sha256 in self._wheels:
                found.append(self.wheel(self._wheels[item.sha256]))
            elif item.sha256 in debs:
                found.append(self.deb(*debs[item.sha256]))
            else:
                found.append(self._own_file(item))
        if isinstance(layer, BytecodeLayer):
            lock = self._python(layer)
            found += [self.deb(lock, deb) for deb in needed_packages(layer.settings.python, lock.debs)]
        return found

    def pythons(self, layers: Iterable[Layer]) -> dict[Sha256, list[LockedDeb]]:
        """Return the packages of the Python that compiles each layer of bytecode, by key."""
        return {
            layer.key: needed_packages(layer.settings.python, self._python(layer).debs)
            for layer in layers
            if isinstance(layer, BytecodeLayer)
        }

    def _python(self, layer: BytecodeLayer) -> BaseLock:
        """Return the base whose Python compiles a layer: that of the image, or the same for this machine."""
        candidates = [lock for lock in map(self._base, self.cells) if _has_python(lock, layer)]
        here = f"linux/{host_machine()}"
        for lock in candidates:
            path = BaseLock.path(self.project.locks, lock.base, here)
            found = lock if lock.platform == here else BaseLock.read(path) if path.exists() else None
            if found is not None and _has_python(found, layer):
                return found
        base = candidates[0].base
        raise NoPythonError(
            f"The bytecode of {base} for another platform cannot be compiled on this machine.",
            where=BaseLock.path(self.project.locks, base, here),
            why=f"It takes Python {layer.settings.package} for {here}, which this lock does not have.",
            fix="Lock both platforms together (`invoke lock --upgrade base`), or build on the image's platform.",
        )

    def wheel(self, wheel: LockedWheel | LockedSource) -> Wanted:
        """Describe a locked wheel for download, with where to look for it."""
        if isinstance(wheel, LockedWheel) and wheel.compiled is not None:
            places = partial(compiled_locations, self.project, wheel)
            return self._archived(Wanted(wheel.file, wheel.sha256, wheel.size, places, NOT_SHARED))
        return self._archived(indexed_file(wheel, lambda: self._indexes))

    def deb(self, lock: BaseLock, deb: LockedDeb) -> Wanted:
        """Describe a locked Debian package for download, with where to look for it."""

        def locations() -> list[str]:
            return deb_locations(deb, lock.suites, self._mirrors(lock))

        return self._archived(Wanted(deb.file, deb.sha256, deb.size, locations, VANISHED))

    def _archived(self, wanted: Wanted) -> Wanted:
        return replace(wanted, elsewhere=from_archive(self.project.matrix, wanted.sha256, wanted.size))

    def apply_mods(self, layers: Iterable[Layer], say: Say) -> None:
        """Apply the mods of layers, before anything else is downloaded; one that does not fit raises here."""
        layers = list(layers)
        mod_layers = [layer for layer in layers if isinstance(layer, ModLayer)]
        compiled = {
            layer.key: ModLayer.of(
                "mod", layer.name, (item for item in layer.inputs if _is_modded(layer, item)), mods
            )
            for layer in layers
            if isinstance(layer, BytecodeLayer) and (mods := layer.settings.mods)
        }
        if mod_layers or compiled:
            known = KnownLayers(self.project.known_layers)
            source = WheelSource(
                self.project.store, known, self._offers_of, self.wheel_of, self.project.slim_lock, say
            )
            self.mod_files |= apply_mods_of(mod_layers, source, self._find_mod, compiled)
            others = OtherWheels(source)
            locks = {self.project.wheel_lock_path(cell): self.project.wheel_lock(cell) for cell in self.cells}
            others.refuse_foreign_files(mod_layers, self.mod_files, locks.values(), self._find_mod)

    def _find_mod(self, link: ModLink) -> tuple[Mod, Variant]:
        """Find a mod in the checkout: unlike the plan's copy, it knows its lines, which errors name."""
        mod = self.project.mods[link.manifest["name"]]
        [variant] = [one for one in mod.manifest.variants if mod.data(one) == link.model_dump()]
        return mod, variant

    def _offers_of(self, sha256: Sha256) -> list[WheelLocation]:
        wheel = self._wheels[sha256]
        return offers_of(wheel, self._indexes) if wheel.compiled is None else []

    def wheel_of(self, sha256: Sha256) -> Wanted:
        """Describe the locked wheel with a sha256 for download."""
        return self.wheel(self._wheels[sha256])

    def _base(self, cell: Cell) -> BaseLock:
        return self._bases.get(cell) or self.project.base_lock(cell)

    def with_bases(self, bases: Mapping[Cell, BaseLock]) -> LayerInputs:
        """Return the same inputs with other Debian packages for some cells."""
        other = LayerInputs(self.project, self.cells, bases)
        other.mod_files = self.mod_files
        return other

    def successors(self, plans: Sequence[Plan], watch: Watcher, say: Say) -> dict[Cell, BaseLock]:
        """Download the bases of plans, and return a new lock for each cell whose packages have vanished.

        A security update removes what it replaces. That must not stop somebody who builds for the first time; the
        image is marked as not locked, and is never published.
        """
        replaced: dict[Sha256, BaseLock | None] = {}
        for plan in plans:
            base = plan.layers[0]
            if base.key in replaced or read_blob_record(base.key, self.project.store) is not None:
                continue
            lock = self._base(plan.cell)
            there = self._fetch_debs(lock, base, watch)
            debs = lock.debs if all(there) else self._with_successors(lock, there, say)
            replaced[base.key] = (
                lock.model_copy(update={"debs": debs, "integrity": ""}) if debs != lock.debs else None
            )
        found = ((plan.cell, replaced.get(plan.layers[0].key)) for plan in plans)
        return {cell: lock for cell, lock in found if lock is not None}

    def _fetch_debs(self, lock: BaseLock, base: Layer, watch: Watcher) -> list[bool]:
        """Download the packages of a base; return for each whether a mirror still has it."""
        there: list[bool] = []
        fetched = 0
        with Downloader(self.project.store) as downloader:
            futures = [downloader.submit(self.deb(lock, deb), lambda _: None) for deb in lock.debs]
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

    @cached_property
    def _indexes(self) -> Indexes:
        named = {url for cell in self.cells for url in arch_of(self.project.matrix, cell).indexes}
        extra = [url for url in sorted(named) if reachable(url)]
        return Indexes(IndexConfig.from_environment().with_extra(extra))

    def _mirrors(self, lock: BaseLock) -> DebianMirrors:
        return DebianMirrors.discover(self.project.matrix.bases[lock.base].debian)

    def _own_file(self, item: Input) -> Wanted:
        """Treat a file of the checkout like any other input: copied into the store and checked by its hash."""
        path = self.project.root / item.name
        return Wanted(item.name, item.sha256, path.stat().st_size, lambda: [str(path)])
