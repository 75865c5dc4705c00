"""Find the tree that a mod is checked on: a release's wheel or sdist, another locked wheel, or a checkout."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from imagefactory.errors.mods import SourceMissingError
from imagefactory.locks.files import LockedSource, LockedWheel, WheelLock
from imagefactory.locks.indexed_files import configured_indexes
from imagefactory.locks.project import Project, locked_cells
from imagefactory.matrix.server_names import VLLM, version_title
from imagefactory.mods.source_files import FolderSource, ReleaseSource, needed_git_source
from images.shipped.mods.apply import Applied, apply_mods
from images.shipped.mods.manifest import Mod, Stage, Variant
from images.shipped.mods.requirements import with_requirements


class Trees:
    """Finds the unmodified files that mods change, for versions of the matrix or for one folder."""

    def __init__(self, project: Project, folder: FolderSource | None = None) -> None:
        self._project = project
        self._folder = folder
        self._indexes = configured_indexes()
        self._releases: dict[str, ReleaseSource] = {}
        self._lock = threading.Lock()

    def tree(self, mod: Mod, variant: Variant, name: str) -> FolderSource | ReleaseSource:
        """Return the unmodified tree of a version that a variant changes."""
        if variant.source is not None:
            return needed_git_source(mod, variant, variant.source)
        if self._folder is not None:
            return self._folder
        return self.release(mod.manifest.distribution, name, variant.stage)

    def release(self, distribution: str, name: str, stage: Stage = "installed") -> ReleaseSource:
        """Return the locked files of a distribution, in the images of a version."""
        locked = self._locked(distribution, stage, name)
        with self._lock:
            if locked.sha256 not in self._releases:
                self._releases[locked.sha256] = ReleaseSource(locked, self._indexes, self._project.store)
            return self._releases[locked.sha256]

    def apply(self, mod: Mod, variant: Variant, name: str) -> list[Applied]:
        """Apply a variant of a mod, after the mods that it requires in the same tree."""
        version = self._project.matrix.versions[name].version
        chosen = with_requirements(mod, self._project.mods, version, variant.stage).values()
        tree = (mod.manifest.distribution, variant.source)
        together = [pair for pair in chosen if (pair[0].manifest.distribution, pair[1].source) == tree]
        return apply_mods(together, self.tree(mod, variant, name).read)

    def _locked(self, distribution: str, stage: Stage, name: str) -> LockedSource | LockedWheel:
        found: LockedSource | LockedWheel | None
        if distribution == VLLM:
            suffix = ".whl" if stage == "installed" else ".tar.gz"
            found = self._project.source_lock.find(self._project.matrix.vllm[name].release or name, suffix)
        else:
            found = self._locked_wheel(distribution, name)
        if found is None:
            raise SourceMissingError(
                f"The sources of {distribution} for {version_title(name)} are not locked.",
                where="locks/sources.toml" if distribution == VLLM else f"locks/{name}",
                why="Mods are checked on locked archives, and a git reference has none.",
                fix="Run `invoke lock`, or check a checkout: `invoke mods.check --source DIR --vllm NAME`.",
            )
        return found

    def _locked_wheel(self, distribution: str, name: str) -> LockedWheel | None:
        return next((wheel for wheel in self.wheels(name) if wheel.name == distribution), None)

    def wheels(self, name: str) -> Iterator[LockedWheel]:
        """Iterate over the locked wheels of a version, on one arch after the other."""
        cells = [cell for cell in locked_cells(self._project) if cell.version == name]
        for lock in sorted({self._project.wheel_lock_path(cell) for cell in cells}):
            yield from WheelLock.read(lock).wheels
