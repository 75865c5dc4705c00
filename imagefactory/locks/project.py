"""A checkout of the factory: its matrix, its locks, its build folder and the machine's store."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from imagefactory.locks.files import BaseLock, KernelLock, ModelLock, SourceLock, ToolLock, WheelLock
from imagefactory.matrix.cells import Cell, buildable
from imagefactory.matrix.matrix import Matrix, load_matrix
from imagefactory.store.cache import Store
from images.shipped.mods.load import load_mods
from images.shipped.mods.manifest import Mod


@dataclass(frozen=True)
class Project:
    """The parts of one checkout; each file is read once, when it is first needed."""

    root: Path
    store: Store = field(default_factory=Store)
    _wheel_locks: dict[Path, WheelLock] = field(default_factory=dict, repr=False)
    _base_locks: dict[Path, BaseLock] = field(default_factory=dict, repr=False)

    @cached_property
    def matrix(self) -> Matrix:
        """The checked matrix.yaml."""
        return load_matrix(self.root / "matrix.yaml")

    @property
    def locks(self) -> Path:
        """The folder of the locks."""
        return self.root / "locks"

    @property
    def known_layers(self) -> Path:
        """The record of layer digests."""
        return self.locks / "layers.toml"

    def build_folder(self, cell: Cell) -> Path:
        """Return the folder of a cell's built image."""
        return self.root / "build" / cell.slug

    def wheel_lock_path(self, cell: Cell) -> Path:
        """Return the path of a cell's wheel lock."""
        return WheelLock.path(self.locks, cell.vllm, cell.arch, cell.platform)

    def base_lock_path(self, cell: Cell) -> Path:
        """Return the path of the lock of a cell's Debian packages."""
        return BaseLock.path(self.locks, self.matrix.archs[cell.arch].base, cell.platform)

    def is_locked(self, cell: Cell) -> bool:
        """Return whether the wheels and Debian packages of a cell are locked."""
        return self.wheel_lock_path(cell).exists() and self.base_lock_path(cell).exists()

    def wheel_lock(self, cell: Cell) -> WheelLock:
        """Return the wheel lock of a cell."""
        path = self.wheel_lock_path(cell)
        if path not in self._wheel_locks:
            self._wheel_locks[path] = WheelLock.read(path)
        return self._wheel_locks[path]

    def base_lock(self, cell: Cell) -> BaseLock:
        """Return the lock of a cell's Debian packages."""
        path = self.base_lock_path(cell)
        if path not in self._base_locks:
            self._base_locks[path] = BaseLock.read(path)
        return self._base_locks[path]

    def substitute_base_lock(self, cell: Cell, lock: BaseLock) -> None:
        """Use other Debian packages than the locked ones from here on."""
        self._base_locks[self.base_lock_path(cell)] = lock

    @cached_property
    def source_lock(self) -> SourceLock:
        """The archives that mods are checked against."""
        return SourceLock.read(SourceLock.path(self.locks))

    @cached_property
    def tool_lock(self) -> ToolLock:
        """The programs that the factory itself runs."""
        return ToolLock.read(ToolLock.path(self.locks))

    @cached_property
    def kernel_lock(self) -> KernelLock:
        """The GPU code found in locked wheels; empty if none was inspected."""
        path = KernelLock.path(self.locks)
        return KernelLock.read(path) if path.exists() else KernelLock(made_from={})

    @cached_property
    def mods(self) -> dict[str, Mod]:
        """Every mod of the checkout, by name."""
        return load_mods(self.root / "mods")

    @cached_property
    def model_lock(self) -> ModelLock:
        """The pinned model revisions; empty if none were looked up."""
        path = ModelLock.path(self.locks)
        return ModelLock.read(path) if path.exists() else ModelLock(made_from={})


def locked_cells(project: Project) -> list[Cell]:
    """List the buildable cells whose wheels have been locked."""
    return [cell for cell in buildable(project.matrix) if project.wheel_lock_path(cell).exists()]
