"""Reading the files that mods change: out of wheels by range request, out of sdists, or from a folder."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import requests

from imagefactory.content import checksum, sha256_of
from imagefactory.downloads import Wanted, fetch
from imagefactory.errors import DigestMismatchError, SourceMissingError
from imagefactory.locks import LockedSource
from imagefactory.mods.manifest import GitSource
from imagefactory.ranges import RangeFile
from imagefactory.resolve.index import Indexes
from imagefactory.store import Store

FACTS = "source-files-1"


class FolderSource:
    """A checked-out tree: a nightly, a pull request, a plugin's repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, path: str) -> str | None:
        """Read a file of the tree."""
        file = self.folder / path
        return file.read_text("utf-8") if file.is_file() else None

    def verify(self, source: GitSource) -> None:
        """Make sure that this is the commit that was meant."""
        found = package_hash(self.folder, source.package)
        if found != source.sha256:
            raise DigestMismatchError(
                f"The folder is not {source.git} at {source.commit[:12]}.",
                where=self.folder,
                why=f"The package {source.package} there has the hash {found}; the mod names {source.sha256}.",
                fix="Check that very commit out, without changes.",
            )


class ReleaseSource:
    """The files of a release, read from its wheel or sdist once and remembered under the archive's hash."""

    def __init__(self, locked: LockedSource, indexes: Indexes, store: Store) -> None:
        self._locked = locked
        self._indexes = indexes
        self._store = store
        self._memory_file = store.facts(FACTS, locked.sha256)
        self._memory: dict[str, str | None] = _recall(self._memory_file)
        self._lock = threading.Lock()
        self._open: Callable[[str], str | None] | None = None

    def read(self, path: str) -> str | None:
        """Read a file of the release."""
        with self._lock:
            if path not in self._memory:
                if self._open is None:
                    self._open = self._opened()
                self._memory[path] = self._open(path)
                with self._store.writing(self._memory_file) as file:
                    file.write(json.dumps(self._memory, sort_keys=True).encode())
            return self._memory[path]

    def _opened(self) -> Callable[[str], str | None]:
        return self._open_wheel() if self._locked.file.endswith(".whl") else self._open_sdist()

    def _open_wheel(self) -> Callable[[str], str | None]:
        local = self._store.download(self._locked.sha256)
        if local.exists():
            archive = ZipFile(local)
        else:
            archive = ZipFile(RangeFile(self._location(), requests.Session()))
        names = frozenset(archive.namelist())
        return lambda path: archive.read(path).decode() if path in names else None

    def _open_sdist(self) -> Callable[[str], str | None]:
        """A tar.gz cannot be read in places: it is fetched whole, once."""
        wanted = Wanted(self._locked.file, self._locked.sha256, self._locked.size, lambda: [self._location()])
        with requests.Session() as session:
            local = fetch(wanted, self._store, session, lambda _: None)
        with tarfile.open(local) as archive:
            members = {member.name.partition("/")[2]: member for member in archive if member.isfile()}

        def read(path: str) -> str | None:
            if path not in members:
                return None
            with tarfile.open(local) as archive:
                file = archive.extractfile(members[path])
                return io.TextIOWrapper(file, "utf-8").read() if file is not None else None

        return read

    def _location(self) -> str:
        for offer in self._indexes.files(self._locked.name):
            if offer.file == self._locked.file and offer.sha256 in (None, self._locked.sha256):
                return offer.url
        raise SourceMissingError(
            f"{self._locked.file} is on no configured index.",
            where=self._locked.file,
            why="The files that mods change are read from it.",
            fix="Check PIP_INDEX_URL and UV_INDEX_URL (`invoke doctor`), or use --source with a checkout.",
        )


def source_variable(repository: str) -> str:
    """Name the variable that says where a checkout of a repository is: FACTORY_SOURCE_TURBOQUANT and the like."""
    name = repository.rpartition("/")[2].upper().replace("-", "_").replace(".", "_")
    return f"FACTORY_SOURCE_{name}"


def git_source(repository: str) -> FolderSource | None:
    """Find a checkout of a git source that the user put somewhere."""
    folder = os.environ.get(source_variable(repository))
    return FolderSource(Path(folder)) if folder else None


def package_files(folder: Path, package: str) -> dict[str, bytes]:
    """Read the files of a package, without bytecode."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted((folder / package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def package_hash(folder: Path, package: str) -> str:
    """Hash a package's files, by path and content."""
    return checksum({path: sha256_of(data) for path, data in package_files(folder, package).items()})


def _recall(memory: Path) -> dict[str, str | None]:
    if not memory.exists():
        return {}
    data: dict[str, str | None] = json.loads(memory.read_text("utf-8"))
    return data
