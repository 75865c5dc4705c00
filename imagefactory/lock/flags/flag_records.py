"""Records the flags of every version of the matrix that has a wheel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from imagefactory.lock.flags import sglang_flags, vllm_flags
from imagefactory.lock.flags.python_source import Read, Sources
from imagefactory.mods.source_files import ReleaseSource
from imagefactory.project.locks.files import LockedSource, LockedWheel
from imagefactory.project.locks.indexed_files import configured_indexes
from imagefactory.project.locks.lock import MadeFrom
from imagefactory.project.locks.server_flags import FlagLock, recorded_version
from imagefactory.project.project import Project, locked_cells
from imagefactory.project.server_names import VLLM, server_name, version_key, version_title
from imagefactory.store.progress import Say

READERS: Final = {VLLM: vllm_flags.read_flags, "sglang": sglang_flags.read_flags}


def wheels_with_flags(project: Project) -> dict[str, LockedSource | LockedWheel]:
    """Return the wheel of each version whose flags can be recorded; versions of one release share a record."""
    found: dict[str, LockedSource | LockedWheel] = {}
    cells = locked_cells(project)
    for name in project.matrix.versions:
        if recorded_version(project, name) != name:
            continue
        wheel: LockedSource | LockedWheel | None
        if server_name(name) == VLLM:
            wheel = project.source_lock.find(project.matrix.versions[name].release or "", ".whl")
        else:
            locks = (project.wheel_lock(cell) for cell in cells if cell.version == name)
            wheels = (wheel for lock in locks for wheel in lock.wheels if wheel.name == server_name(name))
            wheel = next(wheels, None)
        if wheel is not None:
            found[name] = wheel
    return found


def flags_made_from(project: Project) -> dict[str, MadeFrom]:
    """Return what the record of each version's flags should be made from."""
    return {name: _made_from(name, wheel) for name, wheel in wheels_with_flags(project).items()}


def record_flags(project: Project, say: Say) -> Iterator[tuple[Path, bool]]:
    """Write the records that are missing or made from another wheel; yield each with whether it changed."""
    indexes = configured_indexes()
    for name, wheel in wheels_with_flags(project).items():
        path = FlagLock.path(project.locks, name)
        made_from = _made_from(name, wheel)
        if path.exists() and FlagLock.read(path).made_from == made_from:
            yield path, False
            continue
        say(f"Reading the flags of {version_title(name)} from {wheel.file}")
        yield path, flag_lock(name, made_from, ReleaseSource(wheel, indexes, project.store).read).write(path)


def flag_lock(name: str, made_from: Mapping[str, str], read: Read) -> FlagLock:
    """Return the record of a version, read from its files."""
    found = READERS[server_name(name)](Sources(read))
    return FlagLock(
        made_from=dict(made_from),
        version=name,
        flags={flag: " ".join(values) for flag, values in sorted(found.flags.items())},
        switches=tuple(sorted(found.switches)),
        variables=tuple(sorted(found.variables)),
    )


def _made_from(name: str, wheel: LockedSource | LockedWheel) -> MadeFrom:
    return {f"{server_name(name)}.{version_key(name)}": wheel.sha256}
