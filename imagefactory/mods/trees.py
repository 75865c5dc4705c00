"""Find the tree that a mod is checked on: a release's wheel or sdist, another locked wheel, or a checkout."""

from __future__ import annotations

import threading

from imagefactory.environment.index_config import IndexConfig
from imagefactory.errors.mods import SourceMissingError
from imagefactory.locks.files import LockedSource, WheelLock
from imagefactory.locks.project import Project, locked_cells
from imagefactory.mods.source_files import FolderSource, ReleaseSource, needed_git_source
from imagefactory.store.indexes import Indexes
from images.shipped.mods.manifest import Mod, Variant

SourceTree = FolderSource | ReleaseSource


class Trees:
    """Finds the unmodified files that mods change, for versions of the matrix or for one folder."""

    def __init__(self, project: Project, folder: FolderSource | None = None) -> None:
        self._project = project
        self._folder = folder
        self._indexes = Indexes(IndexConfig.from_environment())
        self._releases: dict[str, ReleaseSource] = {}
        self._lock = threading.Lock()

    def tree(self, mod: Mod, variant: Variant, vllm: str) -> SourceTree:
        """Return the tree that a variant changes, in a version."""
        if variant.source is not None:
            return needed_git_source(mod, variant, variant.source)
        if self._folder is not None:
            return self._folder
        locked = self._locked(mod, variant, vllm)
        with self._lock:
            if locked.sha256 not in self._releases:
                self._releases[locked.sha256] = ReleaseSource(locked, self._indexes, self._project.store)
            return self._releases[locked.sha256]

    @staticmethod
    def same(one: tuple[Mod, Variant], other: tuple[Mod, Variant]) -> bool:
        """Return whether two mods change the same tree."""
        return (one[0].manifest.distribution, one[1].source) == (
            other[0].manifest.distribution,
            other[1].source,
        )

    def _locked(self, mod: Mod, variant: Variant, vllm: str) -> LockedSource:
        distribution = mod.manifest.distribution
        if distribution == "vllm":
            found = self._project.source_lock.find(
                vllm, ".whl" if variant.stage == "installed" else ".tar.gz"
            )
        else:
            found = self._locked_wheel(distribution, vllm)
        if found is None:
            raise SourceMissingError(
                f"The sources of {distribution} for vLLM {vllm} are not locked.",
                where="locks/sources.toml" if distribution == "vllm" else f"locks/{vllm}",
                why="Mods are checked on locked archives, and a git reference has none.",
                fix="Run `invoke lock`, or check a checkout: `invoke mods.check --source DIR --vllm NAME`.",
            )
        return found

    def _locked_wheel(self, distribution: str, vllm: str) -> LockedSource | None:
        """Find a distribution in the wheel locks of a vLLM version."""
        cells = [cell for cell in locked_cells(self._project) if cell.vllm == vllm]
        for path in sorted({self._project.wheel_lock_path(cell) for cell in cells}):
            for wheel in WheelLock.read(path).wheels:
                if wheel.name == distribution:
                    return LockedSource(
                        name=wheel.name,
                        version=wheel.version,
                        file=wheel.file,
                        sha256=wheel.sha256,
                        size=wheel.size,
                    )
        return None
