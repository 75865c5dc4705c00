"""Gives access to a checkout of the factory: its matrix, locks, mods and build folder, and the store."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar, cast

from imagefactory.errors import ConfigError, LockError
from imagefactory.project.cells import Cell, buildable, intended_kernels, reason_unlocked
from imagefactory.project.locks.files import (
    BaseLock,
    CompanionLock,
    LicenceLock,
    Lock,
    ModelLock,
    SourceLock,
    ToolLock,
    WheelLock,
)
from imagefactory.project.locks.kernels import KernelLock, SlimLock
from imagefactory.project.matrix import Matrix, load_matrix
from imagefactory.project.wording import plainly
from imagefactory.store.cache import Store
from images.shipped.mods.load import load_mods
from images.shipped.mods.manifest import Mod

_Lock = TypeVar("_Lock", bound=Lock)


@dataclass(frozen=True)
class Project:
    """A checkout, whose files are read once, when they are first needed."""

    root: Path
    store: Store = field(default_factory=Store)
    registry: str = ""  # instead of FACTORY_REGISTRY and that of the matrix
    _locks_by_path: dict[Path, Lock] = field(default_factory=dict, init=False, compare=False, repr=False)

    @cached_property
    def matrix(self) -> Matrix:
        return load_matrix(self.root / "matrix.yaml", self.registry)

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def known_layers(self) -> Path:
        return self.locks / "layers.toml"

    def build_folder(self, cell: Cell) -> Path:
        return self.root / "build" / cell.slug

    def wheel_lock_path(self, cell: Cell) -> Path:
        return WheelLock.path(self.locks, cell.version, cell.arch, cell.platform)

    def base_lock_path(self, cell: Cell) -> Path:
        return BaseLock.path(self.locks, self.matrix.archs[cell.arch].base, cell.platform)

    def is_locked(self, cell: Cell) -> bool:
        return self.wheel_lock_path(cell).exists() and self.base_lock_path(cell).exists()

    def wheel_lock(self, cell: Cell) -> WheelLock:
        path = self.wheel_lock_path(cell)
        if not path.exists() and (reason := reason_unlocked(self.matrix, cell)):
            raise LockError(
                "no-lock",
                f"{cell} has no lock.",
                where=path,
                why=f"{reason[0].upper()}{reason[1:]}.",
                fix=f"Choose one that `./inv targets` has locked, or run `./inv lock --target {cell.full_target}`.",
            )
        return self._read(WheelLock, path)

    def base_lock(self, cell: Cell) -> BaseLock:
        return self._read(BaseLock, self.base_lock_path(cell))

    @property
    def source_lock(self) -> SourceLock:
        return self._read(SourceLock, SourceLock.path(self.locks))

    @property
    def tool_lock(self) -> ToolLock:
        return self._read(ToolLock, ToolLock.path(self.locks))

    @property
    def kernel_lock(self) -> KernelLock:
        """The GPU code found in locked wheels; empty if none was inspected."""
        return self._read(KernelLock, KernelLock.path(self.locks), KernelLock(made_from={}))

    @property
    def slim_lock(self) -> SlimLock:
        """The libraries that builds slimmed; empty if none was."""
        return self._read(SlimLock, SlimLock.path(self.locks), SlimLock(made_from={}))

    @property
    def model_lock(self) -> ModelLock:
        """The pinned model revisions; empty if none were looked up."""
        return self._read(ModelLock, ModelLock.path(self.locks), ModelLock(made_from={}))

    @property
    def licence_lock(self) -> LicenceLock:
        """The licences of locked files; empty if none was read."""
        return self._read(LicenceLock, LicenceLock.path(self.locks), LicenceLock(made_from={}))

    @property
    def companion_lock(self) -> CompanionLock:
        """The digests of images of others; empty if none were looked up."""
        return self._read(CompanionLock, CompanionLock.path(self.locks), CompanionLock(made_from={}))

    def companion(self, name: str) -> str:
        """Return an image of others by digest, or by tag if its digest was never looked up."""
        if name not in self.matrix.companions:
            raise ConfigError(
                "bad-matrix",
                f"No image is known for {name}.",
                where="`companions` in matrix.yaml",
                why="A compose file with it needs one.",
                fix=f"Add `{name}: REGISTRY/NAME:TAG` there.",
            )
        image = self.matrix.companions[name]
        repository, _, tag = image.rpartition(":")
        digest = self.companion_lock.digest_of(name, tag)
        return f"{repository}@{digest}" if digest else image

    def _read(self, kind: type[_Lock], path: Path, missing: _Lock | None = None) -> _Lock:
        if path not in self._locks_by_path:
            lock = missing if missing and not path.exists() else kind.read(path)
            if (home := lock.home(self.locks)) != path:
                raise LockError(
                    "bad-lock",
                    f"{path.name} is the lock of something else.",
                    where=path,
                    why=f"What it says belongs into {home}.",
                    fix="Restore it from git, or delete it and run `./inv lock`.",
                )
            self._locks_by_path[path] = lock
        return cast("_Lock", self._locks_by_path[path])

    @cached_property
    def mods(self) -> dict[str, Mod]:
        with plainly(self.root):
            return load_mods(self.root / "mods")


def locked_cells(project: Project) -> list[Cell]:
    return [cell for cell in buildable(project.matrix) if project.wheel_lock_path(cell).exists()]


def target_status(project: Project, cell: Cell) -> dict[str, str]:
    """Return the status of a target, as the table and the JSON output show it."""
    model = project.matrix.models[cell.model]
    locked = project.is_locked(cell)
    pinned = all(project.model_lock.commit_of(repository) for repository in model.repositories)
    return {
        **asdict(cell),
        "sparks": str(model.sparks),
        "kernels": project.wheel_lock(cell).kernels if locked else intended_kernels(project.matrix, cell),
        "locked": "yes" if locked else "no",
        "revision": "generated" if not model.repositories else "pinned" if pinned else "unpinned",
    }


def unlocked_by_reason(project: Project, cells: Iterable[Cell]) -> dict[str, dict[str, None]]:
    """Group the versions and archs of cells without a lock, such as 0.28.0/b200, by the matrix's reasons."""
    unlocked: dict[str, dict[str, None]] = {}
    for cell in cells:
        if not project.is_locked(cell) and (reason := reason_unlocked(project.matrix, cell)):
            unlocked.setdefault(reason, {})[f"{cell.version}/{cell.arch}"] = None
    return unlocked
