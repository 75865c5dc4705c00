"""Lists and locates compiled wheels, and moves them between the wheelhouse and the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from imagefactory.errors import LockError, RegistryError, UsageError
from imagefactory.lock.wheelhouse.keep import CompiledWheel, all_kept, find
from imagefactory.lock.wheelhouse.remote import RemoteWheel, pull, push, remote_wheels, shared_at, tag_of
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.locks.files import LockedWheel
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project, locked_cells
from imagefactory.store.digests import Digest, Sha256
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import local_wheels


@dataclass(frozen=True)
class ListedWheel(CompiledWheel):
    """A compiled wheel, and where it is."""

    here: bool
    shared: bool | None
    """None if the registry was not queried."""
    locked: bool
    """Whether a lock refers to it."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"key": self.key, **vars(self), "inputs": self.inputs.as_json()}


@dataclass(frozen=True)
class Moved:
    """A wheel that was pushed or pulled, and the outcome."""

    filename: str
    outcome: str
    reference: str


def listing(project: Project, *, name: str = "", key: str = "", remote: bool = False) -> list[ListedWheel]:
    """List the local wheels and, with `remote`, those in the registry."""
    kept = {str(wheel.key): wheel for wheel in all_kept(project.store)}
    shared: dict[str, RemoteWheel] = {}
    if remote:
        with Repository.open(registry_of(project)) as repository:
            shared = {wheel.key: wheel for wheel in remote_wheels(repository, name)}
    locked = _locked_keys(project)
    everything: dict[str, CompiledWheel] = {**shared, **kept}
    rows = [
        ListedWheel(
            *(wheel.filename, wheel.sha256, wheel.size, wheel.inputs),
            here=wheel.key in kept,
            shared=wheel.key in shared if remote else None,
            locked=wheel.key in locked,
        )
        for wheel in everything.values()
        if _wanted(wheel, name, key)
    ]
    return sorted(rows, key=lambda row: (row.inputs.name, row.inputs.version, row.key))


def push_all(project: Project, *, name: str = "", key: str = "") -> Iterator[Moved]:
    """Push the local wheels, or those that a name or key selects."""
    wheels = [wheel for wheel in all_kept(project.store) if _wanted(wheel, name, key)]
    if not wheels:
        raise _nothing(project, name, key, "the wheelhouse of this machine")
    with Repository.open(registry_of(project)) as repository:
        for wheel in wheels:
            outcome = push(repository, wheel)
            yield Moved(wheel.filename, outcome, f"{repository.reference.name}:{tag_of(wheel.inputs)}")


def pull_all(project: Project, *, name: str = "", key: str = "") -> Iterator[Moved]:
    """Pull the wheels that a name or key selects, by default those that the locks refer to."""
    asked = bool(name or key)
    locked = set() if asked else _locked_keys(project)
    where = registry_of(project)
    with Repository.open(where) as repository:
        offers = [
            wheel
            for wheel in remote_wheels(repository, name)
            if (_wanted(wheel, name, key) if asked else wheel.key in locked)
        ]
        missing = locked - {wheel.key for wheel in offers} - {w.key for w in all_kept(project.store)}
        if missing or (asked and not offers):
            raise _nothing(project, name, key or min(missing, default=""), where)
        for wheel in offers:
            reference = f"{repository.reference.name}:{wheel.tag}"
            here = find(project.store, wheel.key)
            if here is not None and here.sha256 == wheel.sha256:
                yield Moved(wheel.filename, "present", reference)
            else:
                yield Moved(pull(repository, wheel, project.store).filename, "pulled", reference)


def compiled_locations(project: Project, wheel: LockedWheel) -> list[str]:
    """List local files that may be a locked wheel; if there is none, pull it from the registry.

    The lock's sha256 decides. The same inputs may compile to different bytes on another machine, so the wheel that the
    wheelhouse has under a key is only a candidate.
    """
    kept = find(project.store, str(wheel.compiled))
    if kept is not None and kept.sha256 == wheel.sha256:
        return [str(kept.path)]
    folders = local_wheels(IndexConfig.from_environment())
    found = [str(path) for path in folders if path.name == wheel.file]
    where = shared_at(project.matrix)
    if not found and where is not None:
        with Repository.open(where) as repository:
            offers = [
                offer for offer in remote_wheels(repository, wheel.name) if offer.sha256 == wheel.sha256
            ]
            found = [str(pull(repository, offer, project.store).path) for offer in offers[:1]]
    return found


def from_archive(matrix: Matrix, sha256: Sha256, size: int) -> Callable[[Path], str] | None:
    """Return a function that takes a file from the registry, or tells why it cannot; None without a registry.

    `wheels.archive` puts locked files there for the day on which an index loses them. A registry finds content by its
    digest, so it does not matter for which target the file was archived.
    """
    where = shared_at(matrix)
    if where is None:
        return None

    def take(path: Path) -> str:
        try:
            with Repository.open(where) as repository:
                repository.download(Digest(f"sha256:{sha256}"), size, path)
        except RegistryError as error:
            return f"{where}: {error.what}"
        return ""

    return take


def _locked_keys(project: Project) -> set[str]:
    return {
        wheel.compiled
        for cell in locked_cells(project)
        for wheel in project.wheel_lock(cell).wheels
        if wheel.compiled is not None
    }


def _wanted(wheel: CompiledWheel, name: str, key: str) -> bool:
    same = not name or canonicalize_name(name) == canonicalize_name(wheel.inputs.name)
    return same and wheel.key.startswith(key)


def registry_of(project: Project) -> str:
    """Return the repository that compiled wheels are shared in."""
    where = shared_at(project.matrix)
    if where is None:
        raise UsageError(
            "no-registry",
            "No registry is configured.",
            where="matrix.yaml, registry",
            why=f"It still says {project.matrix.registry}.",
            fix="Set FACTORY_REGISTRY to your own repository, such as ghcr.io/you/spark-vllm, or edit matrix.yaml.",
        )
    return where


def _nothing(project: Project, name: str, key: str, where: str) -> LockError:
    what = " ".join(part for part in (name and f"of {name}", key and f"with the key {key}") if part)
    wheels = all_kept(project.store)
    kept = [f"{wheel.inputs.name} {wheel.inputs.version} ({wheel.key[:16]})" for wheel in wheels]
    return LockError(
        "wheel-not-kept",
        f"There is no compiled wheel {what}".rstrip() + ".",
        where=where,
        why=f"This machine has {', '.join(kept) or 'none'}.",
        fix="`./inv wheels.list --remote` lists all wheels; `./inv compile` makes one.",
    )
