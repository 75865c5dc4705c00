"""Sharing the wheelhouse: list local and remote wheels, and move wheels between the two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name

from imagefactory.errors.wheelhouse import NoRegistryError, WheelNotKeptError
from imagefactory.locks.project import Project, locked_cells
from imagefactory.resolve.wheelhouse.keep import CompileInputs, KeptWheel, all_kept, find
from imagefactory.resolve.wheelhouse.remote import (
    RemoteWheel,
    opened,
    pull,
    push,
    remote_wheels,
    shared_at,
    tag_of,
)


@dataclass(frozen=True)
class ListedWheel:
    """A compiled wheel, and where it is."""

    key: str
    filename: str
    sha256: str
    size: int
    inputs: CompileInputs
    here: bool
    shared: bool | None
    """None if the registry was not queried."""
    locked: bool
    """Whether a lock refers to it."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**vars(self), "inputs": self.inputs.as_json()}


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
        with opened(_registry(project)) as repository:
            shared = {wheel.key: wheel for wheel in remote_wheels(repository, name)}
    locked = _locked_keys(project)
    everything: dict[str, KeptWheel | RemoteWheel] = {**shared, **kept}
    rows = []
    for wheel in everything.values():
        if _wanted(wheel, name, key):
            there = wheel.key in shared if remote else None
            facts = (wheel.key, wheel.filename, wheel.sha256, wheel.size, wheel.inputs)
            rows.append(ListedWheel(*facts, wheel.key in kept, there, wheel.key in locked))
    return sorted(rows, key=lambda row: (row.inputs.name, row.inputs.version, row.key))


def push_all(project: Project, *, name: str = "", key: str = "") -> Iterator[Moved]:
    """Push the local wheels, or those that a name or key selects."""
    wheels = [wheel for wheel in all_kept(project.store) if _wanted(wheel, name, key)]
    if not wheels:
        raise _nothing(project, name, key, "the wheelhouse of this machine")
    with opened(_registry(project)) as repository:
        for wheel in wheels:
            outcome = push(repository, wheel)
            yield Moved(wheel.filename, outcome, f"{repository.reference.name}:{tag_of(wheel.inputs)}")


def pull_all(project: Project, *, name: str = "", key: str = "") -> Iterator[Moved]:
    """Pull the wheels that a name or key selects, by default those that the locks refer to."""
    asked = bool(name or key)
    locked = {} if asked else _locked_keys(project)
    where = _registry(project)
    with opened(where) as repository:
        offers = [
            wheel
            for wheel in remote_wheels(repository, name)
            if (_wanted(wheel, name, key) if asked else wheel.key in locked)
        ]
        missing = set(locked) - {wheel.key for wheel in offers} - {w.key for w in all_kept(project.store)}
        if missing or (asked and not offers):
            raise _nothing(project, name, key or min(missing, default=""), where)
        for wheel in offers:
            reference = f"{repository.reference.name}:{wheel.tag}"
            here = find(project.store, wheel.key)
            if here is not None and here.sha256 == wheel.sha256:
                yield Moved(wheel.filename, "present", reference)
            else:
                yield Moved(pull(repository, wheel, project.store).filename, "pulled", reference)


def _locked_keys(project: Project) -> dict[str, str]:
    """Map the keys of locked compiled wheels to their file names."""
    locks = {project.wheel_lock_path(cell): project.wheel_lock(cell) for cell in locked_cells(project)}
    return {
        wheel.compiled: wheel.file
        for lock in locks.values()
        for wheel in lock.wheels
        if wheel.compiled is not None
    }


def _wanted(wheel: KeptWheel | RemoteWheel, name: str, key: str) -> bool:
    same = not name or canonicalize_name(name) == canonicalize_name(wheel.inputs.name)
    return same and wheel.key.startswith(key)


def _registry(project: Project) -> str:
    where = shared_at(project.matrix)
    if where is None:
        raise NoRegistryError(
            "No registry is configured.",
            where="matrix.yaml, registry",
            why=f"It still says {project.matrix.registry}.",
            fix="Set FACTORY_REGISTRY to your own repository, such as ghcr.io/you/spark-vllm, or edit matrix.yaml.",
        )
    return where


def _nothing(project: Project, name: str, key: str, where: str) -> WheelNotKeptError:
    what = " ".join(part for part in (name and f"of {name}", key and f"with the key {key}") if part)
    kept = [
        f"{wheel.inputs.name} {wheel.inputs.version} ({wheel.key[:16]})" for wheel in all_kept(project.store)
    ]
    return WheelNotKeptError(
        f"There is no compiled wheel {what}".rstrip() + ".",
        where=where,
        why=f"This machine has {', '.join(kept) or 'none'}.",
        fix="`invoke wheels.list --remote` lists all wheels; `invoke compile` makes one.",
    )
