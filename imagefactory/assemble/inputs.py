"""Locates what layers are made from: wheels on indexes, Debian packages on mirrors, files of the checkout."""

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from pathlib import Path

from imagefactory.assemble.layers.bytecode_layer import needed_packages
from imagefactory.assemble.watch import Watcher
from imagefactory.errors import BuildError
from imagefactory.lock.base_locks import deb_locations
from imagefactory.lock.mirrors import DebianMirrors
from imagefactory.lock.wheelhouse.share import locate
from imagefactory.plan.bytecode import python_packages
from imagefactory.plan.plan import BytecodeLayer, Input, Layer, ModLayer
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import BaseLock, LockedDeb, LockedSource, LockedWheel
from imagefactory.project.project import Project
from imagefactory.project.targets import host_machine
from imagefactory.store.digests import Sha256
from imagefactory.store.downloads import Downloader, Wanted
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes, reachable

VANISHED = (
    "Check the network and the configured mirror (`./inv doctor`). If a security update replaced the package, "
    "lock its successor: `./inv lock --upgrade base`."
)


class LayerInputs:
    """Knows where the locked files of some cells can be had; nothing is asked for before it is needed."""

    def __init__(self, project: Project, cells: Sequence[Cell]) -> None:
        self.project = project
        self.cells = cells
        self._wheels = {wheel.sha256: wheel for cell in cells for wheel in project.wheel_lock(cell).wheels}

    @cached_property
    def _debs(self) -> dict[Sha256, tuple[BaseLock, LockedDeb]]:
        locks = map(self.project.base_lock, self.cells)
        return {deb.sha256: (lock, deb) for lock in locks for deb in lock.debs}

    def wanted(self, layer: Layer) -> list[Wanted]:
        """List the files that a layer is made from, and where to look for them; bytecode also needs a Python."""
        files = [self.locate(file) for file in layer.inputs]
        if isinstance(layer, BytecodeLayer):
            lock = self._base_here(layer)
            files += [self.deb(lock, deb) for deb in needed_packages(layer.settings.python, lock.debs)]
        return files

    def python_of(self, layer: Layer) -> tuple[LockedDeb, ...]:
        """Return the packages of the Python that compiles a layer of bytecode; other layers need none."""
        if not isinstance(layer, BytecodeLayer):
            return ()
        return tuple(needed_packages(layer.settings.python, self._base_here(layer).debs))

    def _base_here(self, layer: BytecodeLayer) -> BaseLock:
        """Return the base whose Python compiles a layer: that of the image, or the same for this machine."""
        bases = [lock for lock in map(self.project.base_lock, self.cells) if _has_python(lock, layer)]
        platform = f"linux/{host_machine()}"
        for lock in bases:
            path = BaseLock.path(self.project.locks, lock.base, platform)
            local = lock if lock.platform == platform else BaseLock.read(path) if path.exists() else None
            if local is not None and _has_python(local, layer):
                return local
        base = bases[0].base
        raise BuildError(
            "no-python",
            f"The bytecode of {base} for another platform cannot be compiled on this machine.",
            where=BaseLock.path(self.project.locks, base, platform),
            why=f"It takes Python {layer.settings.package} for {platform}, which this lock does not have.",
            fix="Lock both platforms together (`./inv lock --upgrade base`), or build on the image's platform.",
        )

    def require_compiled(self, layers: Iterable[Layer]) -> None:
        """Get hold of the compiled wheels of layers, which nobody may have, before gigabytes are downloaded."""
        hashes = {file.sha256 for layer in layers for file in layer.inputs}
        for wheel in self._wheels.values():
            if wheel.compiled and wheel.sha256 in hashes and not self.project.store.download(wheel.sha256).exists():
                self.wheel(wheel).locations()

    def locate(self, file: Input) -> Wanted:
        if file.kind == "wheel":
            return self.wheel(self._wheels[file.sha256])
        if file.kind == "deb":
            return self.deb(*self._debs[file.sha256])
        # A file of the checkout is treated like any other input: copied into the store and checked by its hash.
        path = self.project.root / file.name
        return Wanted(file.name, file.sha256, path.stat().st_size, lambda: [str(path)])

    def wheel(self, wheel: LockedWheel | LockedSource) -> Wanted:
        return locate(self.project, wheel, lambda: self._indexes)

    def deb(self, lock: BaseLock, deb: LockedDeb) -> Wanted:
        def locations() -> list[str]:
            mirrors = DebianMirrors.discover(self.project.matrix.bases[lock.base].debian)
            return deb_locations(deb, lock.suites, mirrors)

        return Wanted(deb.file, deb.sha256, deb.size, locations, VANISHED)

    @cached_property
    def _indexes(self) -> Indexes:
        named = {url for cell in self.cells for url in self.project.matrix.archs[cell.arch].indexes}
        extra = [url for url in sorted(named) if reachable(url)]
        return Indexes(IndexConfig.from_environment().with_extra(extra))


def _has_python(lock: BaseLock, layer: BytecodeLayer) -> bool:
    # The first package is the program, whose version the layer's settings name.
    return layer.settings.package in {deb.version for deb in python_packages(layer.settings.python, lock.debs)[:1]}


class Downloads(Downloader):
    """The files of layers on their way into the store; an exception stops all of them."""

    def __init__(self, inputs: LayerInputs, layers: Sequence[Layer], watch: Watcher) -> None:
        super().__init__(inputs.project.store)
        self.inputs = inputs
        self._watch = watch
        # Bytecode and mods are made from wheels that also have layers of their own, where their bytes count.
        ordered = sorted(layers, key=lambda layer: isinstance(layer, BytecodeLayer | ModLayer))
        absent = {layer.key: self._absent(layer) for layer in ordered}
        self._needs = {key: {file.sha256 for file in files} for key, files in absent.items()}
        self._counted_for = {file.sha256: key for key, files in reversed(absent.items()) for file in files}
        self._sizes = dict.fromkeys(absent, 0)
        self._fetched: dict[Sha256, dict[Sha256, int]] = {key: {} for key in absent}
        for file in {file.sha256: file for files in absent.values() for file in files}.values():
            self._sizes[self._counted_for[file.sha256]] += file.size
        for key, needs in self._needs.items():
            if needs and not self._sizes[key]:
                watch.state(key, "waiting for wheels", 0, 0)
        self._coming: dict[Sha256, Future[Path]] = {}
        # In the order that was asked for; two layers may need the same file.
        for file in (file for layer in layers for file in absent[layer.key]):
            if file.sha256 not in self._coming:
                self._coming[file.sha256] = self.submit(file, partial(self._tell, file.sha256))

    def of(self, layer: Layer) -> Collection[Future[Path]]:
        return {self._coming[sha256] for sha256 in self._needs[layer.key]}

    def get(self, files: Iterable[Wanted]) -> dict[Sha256, Path]:
        """Return files, also of other layers, as soon as they are there."""
        for file in (files := list(files)):
            if file.sha256 not in self._coming:
                self._coming[file.sha256] = self.submit(file, lambda _: None)
        return {file.sha256: self._coming[file.sha256].result() for file in files}

    def _absent(self, layer: Layer) -> list[Wanted]:
        files = {file.sha256: file for file in self.inputs.wanted(layer)}
        return [file for file in files.values() if not self._store.download(file.sha256).exists()]

    def _tell(self, sha256: Sha256, done: int) -> None:
        key = self._counted_for[sha256]
        self._fetched[key][sha256] = done
        self._watch.state(key, "downloading", sum(self._fetched[key].values()), self._sizes[key])
