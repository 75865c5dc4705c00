"""The weekly refresh: newer packages in the locks, and a new vLLM release in the matrix."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagefactory.environment.progress import Say
from imagefactory.environment.sets import FOLDER, LockedSet
from imagefactory.errors.ci import ReleaseError
from imagefactory.locks.project import Project, locked_cells
from imagefactory.matrix.cells import Cell, reason_excluded
from imagefactory.matrix.matrix import Matrix
from imagefactory.mods.compatibility import ModResult
from imagefactory.mods.readme_table import markdown
from imagefactory.publish.attest.licence_record import update_licences
from imagefactory.resolve.environment_locks import lock_environment
from imagefactory.resolve.making import make_locks
from imagefactory.store.atomic import write_text
from imagefactory.store.indexes import Indexes

_SHOWN = 40


@dataclass(frozen=True)
class Refreshed:
    """What a week brought."""

    release: str | None
    """A vLLM release that the matrix did not have."""
    packages: tuple[str, ...]
    """`LOCK: NAME OLD → NEW`."""

    def body(self, results: Sequence[ModResult]) -> str:
        """Write the text of the pull request, with the compatibility table."""
        lines: list[str] = []
        if self.release:
            lines += [
                f"vLLM {self.release} is new, and locked here.",
                "`defaults` in matrix.yaml still names the old one: moving it is for a person to decide.",
                "",
            ]
        if self.packages:
            lines += [f"{len(self.packages)} packages moved:", ""]
            lines += [f"- {line}" for line in self.packages[:_SHOWN]]
            more = len(self.packages) - _SHOWN
            lines += [f"- and {more} more" if more > 0 else "", ""]
        broken = [result for result in results if not result.holds]
        if broken:
            lines += ["**Some mods do not hold**: settle that before merging.", ""]
        lines += ["## Mods", "", markdown(results), ""]
        lines += [
            "GitHub does not start checks for what a workflow opens: close and reopen this pull request to run them.",
            "",
        ]
        return "\n".join(lines)


def newest_release(matrix: Matrix, indexes: Indexes) -> str | None:
    """Find the newest final release of vLLM on the index, if the matrix does not have it."""
    known = max(version.version for version in matrix.vllm.values() if version.release)
    offered = {
        parse_wheel_filename(offer.file)[1] for offer in indexes.files("vllm") if offer.file.endswith(".whl")
    }
    newer = [
        version
        for version in offered
        if version > known and not (version.is_prerelease or version.is_postrelease or version.local)
    ]
    return str(max(newer)) if newer else None


def add_release(path: Path, release: str) -> None:
    """Add a vLLM release to matrix.yaml, after the newest one, without touching anything else."""
    text = path.read_text("utf-8")
    lines = text.splitlines(keepends=True)
    begin = next((number for number, line in enumerate(lines) if line.rstrip() == "vllm:"), None)
    entries = list(_entries(lines, begin)) if begin is not None else []
    if not entries:
        raise ReleaseError(
            "The release cannot be added to the matrix.",
            where=path,
            why="It has no block `vllm:` with a release on a line of its own.",
            fix=f'Add `"{release}": {{release: "{release}"}}` by hand.',
        )
    _, last = max(entries)
    lines.insert(last, f'  "{release}": {{release: "{release}"}}\n')
    write_text(path, _ahead("".join(lines), Version(release)))


def _entries(lines: Sequence[str], begin: int) -> Iterator[tuple[Version, int]]:
    """List the releases of the block, each with the number of the line after it."""
    number = begin + 1
    while number < len(lines) and (lines[number].startswith(" ") or not lines[number].strip()):
        found = re.match(r'  "([0-9.]+)":', lines[number])
        number += 1
        if found:
            while number < len(lines) and lines[number].startswith("   "):
                number += 1
            yield Version(found[1]), number


def _ahead(text: str, release: Version) -> str:
    """Make the version that follows a branch newer than the release that was just added."""

    def bumped(found: re.Match[str]) -> str:
        if Version(found[2]) > release:
            return found[0]
        return f"{found[1]}{release.major}.{release.minor + 1}.0.dev0"

    return re.sub(r"^(  nightly:.*counts_as: )([0-9][0-9a-z.]*)", bumped, text, flags=re.MULTILINE)


def refresh(project: Project, indexes: Indexes, upgrade: Sequence[str], say: Say) -> Refreshed:
    """Upgrade packages in the locks; add and lock a new vLLM release wherever the newest one is locked."""
    before = _versions(project.locks)
    newest = max(
        (name for name, version in project.matrix.vllm.items() if version.release),
        key=lambda name: project.matrix.vllm[name].version,
    )
    release = newest_release(project.matrix, indexes)
    cells = locked_cells(project)
    _exhaust(make_locks(project, cells, upgrade=upgrade, say=say))
    if release is not None:
        say(f"vLLM {release} is new")
        add_release(project.root / "matrix.yaml", release)
        project = Project(project.root, project.store)
        wanted = [
            Cell(cell.model, release, cell.arch, cell.platform) for cell in cells if cell.vllm == newest
        ]
        new = [cell for cell in wanted if reason_excluded(project.matrix, cell) is None]
        _exhaust(make_locks(project, new, say=say))
    update_licences(project, say)
    lock_environment(project.root, say, upgrade=True)
    return Refreshed(release, tuple(_moved(before, _versions(project.locks))))


def _exhaust(results: Iterator[object]) -> None:
    for _ in results:
        pass


def _versions(locks: Path) -> dict[str, dict[str, str]]:
    """Read the version of each package in every lock."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(locks.glob("*/*.toml")):
        data = tomllib.loads(path.read_text("utf-8"))
        entries = [*data.get("wheels", ()), *data.get("debs", ())]
        found[path.relative_to(locks).as_posix()] = {entry["name"]: entry["version"] for entry in entries}
    own = LockedSet("test", locks / FOLDER.name / "test.txt")  # it holds what the smaller sets hold
    if own.path.exists():
        found[own.path.relative_to(locks).as_posix()] = own.pins()
    return found


def _moved(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for lock, packages in after.items():
        old = before.get(lock)
        if old is None:
            yield f"{lock}: new, {len(packages)} packages"
            continue
        for name in sorted(old.keys() | packages.keys()):
            if old.get(name) != packages.get(name):
                yield f"{lock}: {name} {old.get(name, 'nothing')} → {packages.get(name, 'nothing')}"
