"""Finds and reads the files that mods change: in wheels by range request, in sdists, or in a folder."""

import json
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from zipfile import ZipFile

from imagefactory.errors import NetworkError
from imagefactory.project.locks.files import LockedSource, LockedWheel, WheelLock
from imagefactory.project.locks.indexed_files import configured_indexes, indexed_file, offers_of, open_in_place
from imagefactory.project.project import Project, locked_cells
from imagefactory.project.server_versions import VLLM, version_title
from imagefactory.store.atomic import writing
from imagefactory.store.cache import Store
from imagefactory.store.downloads import fetch
from imagefactory.store.http import new_session
from imagefactory.store.indexes import Indexes
from images.shipped.mods.apply import Applied, apply_mods
from images.shipped.mods.manifest import IMAGE_FILES, Mod, Stage, Variant
from images.shipped.mods.text import decoded, read_text

FACTS = "source-files-2"  # a new number when the same file would be read differently


class FolderSource:
    """A checked-out tree: a nightly, a pull request, a plugin's repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, path: str) -> str | None:
        return read_text(self.folder / path, path) if not path.startswith(IMAGE_FILES) else None


class ReleaseSource:
    """The files of a release, read once from its wheel or sdist and cached under the archive's hash."""

    def __init__(self, locked: LockedSource | LockedWheel, indexes: Indexes, store: Store) -> None:
        self._locked = locked
        self._indexes = indexes
        self._store = store
        self._memory_file = store.facts(FACTS, locked.sha256)
        self._memory: dict[str, str | None] = {}
        # If the record is missing or damaged, the files are read again.
        with suppress(FileNotFoundError, TypeError, ValueError, RecursionError):
            self._memory = dict(json.loads(self._memory_file.read_text("utf-8")))
        self._lock = threading.Lock()
        self._session = new_session()

    def read(self, path: str) -> str | None:
        with self._lock:
            if path not in self._memory:
                self._memory[path] = self._read_member(path)
                with writing(self._memory_file) as file:
                    file.write(json.dumps(self._memory, sort_keys=True).encode())
            return self._memory[path]

    @property
    def distribution(self) -> str:
        return self._locked.name

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self._zip.namelist())

    def may_hold(self, path: str) -> bool:
        """Whether it has a file, or a package that the file could belong to."""
        top = path.partition("/")[0]
        return path in self.names or (top != path and f"{top}/__init__.py" in self.names)

    def texts(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the paths and contents of text files of a wheel, which is downloaded as a whole."""
        with ZipFile(self.archive()) as archive:
            for name in names:
                with suppress(UnicodeDecodeError):
                    yield name, archive.read(name).decode()

    @cached_property
    def _zip(self) -> ZipFile:
        in_place = None if self._is_downloaded else open_in_place(self._locked, self._indexes, self._session)
        return in_place or ZipFile(self.archive())

    @cached_property
    def _read_member(self) -> Callable[[str], str | None]:
        if not self._locked.file.endswith(".whl"):
            return self._open_sdist()
        return lambda path: decoded(self._zip.read(path), path) if path in self.names else None

    def archive(self) -> Path:
        """Return the whole archive, which is downloaded and hashed if it is not here."""
        if not self._is_downloaded and not offers_of(self._locked, self._indexes):
            raise NetworkError(
                "source-missing",
                f"{self._locked.file} is on no configured index.",
                where=self._locked.file,
                why="Its files are needed to check or apply a mod.",
                fix="Check PIP_INDEX_URL and UV_INDEX_URL (`./inv doctor`), or use --source with a checkout.",
            )
        return fetch(indexed_file(self._locked, lambda: self._indexes), self._store, self._session, lambda _: None)

    @property
    def _is_downloaded(self) -> bool:
        return self._store.download(self._locked.sha256).exists()

    def _open_sdist(self) -> Callable[[str], str | None]:
        """Download the sdist, since a tar.gz cannot be read in parts."""
        local = self.archive()
        with tarfile.open(local) as archive:
            # Without the folder NAME-VERSION, which everything in an sdist is below.
            members = {member.name.partition("/")[2]: member for member in archive if member.isfile()}

        def read(path: str) -> str | None:
            if path not in members:
                return None
            with tarfile.open(local) as archive:
                file = archive.extractfile(members[path])
                return decoded(file.read(), path) if file is not None else None

        return read


class Trees:
    """Finds the unmodified files that mods change, for versions of the matrix or for one folder."""

    def __init__(self, project: Project, folder: FolderSource | None = None) -> None:
        self._project = project
        self._folder = folder
        self._indexes = configured_indexes()
        self._releases: dict[str, ReleaseSource] = {}
        self._lock = threading.Lock()

    def tree(self, mod: Mod, variant: Variant, name: str) -> FolderSource | ReleaseSource:
        if self._folder is not None:
            return self._folder
        return self.release(mod.manifest.distribution, name, variant.stage)

    def release(self, distribution: str, name: str, stage: Stage = "installed") -> ReleaseSource:
        locked = self._locked(distribution, stage, name)
        with self._lock:
            if locked.sha256 not in self._releases:
                self._releases[locked.sha256] = ReleaseSource(locked, self._indexes, self._project.store)
            return self._releases[locked.sha256]

    def apply(self, mod: Mod, variant: Variant, name: str) -> Applied:
        return apply_mods([(mod, variant)], self.tree(mod, variant, name).read)[0]

    def _locked(self, distribution: str, stage: Stage, name: str) -> LockedSource | LockedWheel:
        locked: LockedSource | LockedWheel | None
        if distribution == VLLM:
            suffix = ".whl" if stage == "installed" else ".tar.gz"
            locked = self._project.source_lock.find(self._project.matrix.vllm[name].release or name, suffix)
        else:
            locked = next((wheel for wheel in self.wheels(name) if wheel.name == distribution), None)
        if locked is None:
            raise NetworkError(
                "source-missing",
                f"The sources of {distribution} for {version_title(name)} are not locked.",
                where="locks/sources.toml" if distribution == VLLM else f"locks/{name}",
                why="Mods are checked on locked archives, and a git reference has none.",
                fix="Run `./inv lock`, or check a checkout: `./inv mods.check --source DIR --vllm NAME`.",
            )
        return locked

    def wheels(self, name: str) -> Iterator[LockedWheel]:
        cells = [cell for cell in locked_cells(self._project) if cell.version == name]
        for lock in sorted({self._project.wheel_lock_path(cell) for cell in cells}):
            yield from WheelLock.read(lock).wheels
