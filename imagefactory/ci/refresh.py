"""The weekly refresh: upgrades the packages in the locks and adds a new vLLM release to the matrix."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagefactory.environment.locks import lock_environment
from imagefactory.environment.setup import FOLDER, LockedSet
from imagefactory.errors import ConfigError
from imagefactory.lock.making import UPGRADE_ALL, UPGRADE_COMPANIONS, make_locks
from imagefactory.mods.compatibility import ModResult, markdown
from imagefactory.project.cells import reason_excluded
from imagefactory.project.locks.files import CompanionLock
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project, locked_cells
from imagefactory.publish.attest.licence_record import update_licences
from imagefactory.store.atomic import write_text
from imagefactory.store.indexes import Indexes
from imagefactory.store.progress import Say

_SHOWN = 40
_SECURITY = " (security)"


@dataclass(frozen=True)
class Refreshed:
    """What a refresh changed."""

    release: str | None
    """The vLLM release that was added to the matrix."""
    packages: tuple[str, ...]
    """`LOCK: NAME OLD → NEW`, and `(security)` if the update comes from Debian's security suite; those come first."""

    def body(self, results: Sequence[ModResult]) -> str:
        lines: list[str] = []
        if self.release:
            lines += [f"vLLM {self.release} is new, and locked here."]
            lines += ["`defaults` in matrix.yaml still names the old one; change it when you are ready.", ""]
        if self.packages:
            security = sum(line.endswith(_SECURITY) for line in self.packages)
            marked = f", {security} of them with a security update from Debian" if security else ""
            lines += [f"{len(self.packages)} packages moved{marked}:", ""]
            lines += [f"- {line}" for line in self.packages[:_SHOWN]]
            more = len(self.packages) - _SHOWN
            lines += [f"- and {more} more" if more > 0 else "", ""]
        if not all(result.holds for result in results):
            lines += ["**Some mods do not hold**: fix them before merging.", ""]
        lines += ["## Mods", "", markdown(results), ""]
        note = "GitHub runs no checks on pull requests that a workflow opens: close and reopen this one to run them."
        return "\n".join([*lines, note, ""])


def newest_release(matrix: Matrix, indexes: Indexes) -> str | None:
    """Return the newest final release of vLLM on the index; None if the matrix has it."""
    known = max(version.version for version in matrix.vllm.values() if version.release)
    wheels = (offer.file for offer in indexes.files("vllm") if offer.file.endswith(".whl"))
    offered = [parse_wheel_filename(file)[1] for file in wheels]
    final = [one for one in offered if not (one.is_prerelease or one.is_postrelease or one.local)]
    newest = max(final, default=known)
    return str(newest) if newest > known else None


def add_release(path: Path, release: str) -> None:
    """Add a vLLM release to matrix.yaml, after the newest one, without touching anything else."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    entries = list(_entries(lines))
    if not entries:
        raise ConfigError(
            "bad-release",
            "The release cannot be added to the matrix.",
            where=path,
            why="It has no block `vllm:` with each release on its own line.",
            fix=f'Add `"{release}": {{release: "{release}"}}` by hand.',
        )
    _, last = max(entries)
    lines.insert(last, f'  "{release}": {{release: "{release}"}}\n')
    write_text(path, _ahead("".join(lines), Version(release)))


def _entries(lines: Sequence[str]) -> Iterator[tuple[Version, int]]:
    """Iterate over the releases of the block `vllm:`, each with the number of the line after it."""
    inside, release = False, None
    for number, line in enumerate([*lines, "end"]):
        if release is not None and not line.startswith("   "):
            yield release, number
            release = None
        if line.strip() and not line.startswith(" "):
            inside = line.rstrip() == "vllm:"
        found = re.match(r'  "([0-9.]+)":', line)
        if inside and found:
            release = Version(found[1])


def _ahead(text: str, release: Version) -> str:
    """Make `nightly` count as newer than the release that was added."""

    def bumped(found: re.Match[str]) -> str:
        if Version(found[2]) > release:
            return found[0]
        return f"{found[1]}{release.major}.{release.minor + 1}.0.dev0"

    return re.sub(r"^(  nightly:.*counts_as: )([0-9][0-9a-z.]*)", bumped, text, flags=re.MULTILINE)


def refresh(project: Project, indexes: Indexes, upgrade: Sequence[str], say: Say) -> Refreshed:
    """Upgrade packages in the locks; add and lock a new vLLM release wherever the newest one is locked."""
    before = _versions(project.locks)
    releases = {name: version for name, version in project.matrix.vllm.items() if version.release}
    newest = max(releases, key=lambda name: releases[name].version)
    release = newest_release(project.matrix, indexes)
    cells = locked_cells(project)
    upgrade = [*upgrade, UPGRADE_COMPANIONS] if UPGRADE_ALL in upgrade else upgrade
    made = list(make_locks(project, cells, upgrade=upgrade, say=say))
    security = {result.path.relative_to(project.locks).as_posix(): result.security for result in made}
    if release is not None:
        say(f"vLLM {release} is new")
        add_release(project.root / "matrix.yaml", release)
        project = Project(project.root, project.store)
        wanted = [replace(cell, version=release) for cell in cells if cell.version == newest]
        new = [cell for cell in wanted if reason_excluded(project.matrix, cell) is None]
        list(make_locks(project, new, say=say))
    update_licences(project, say)
    lock_environment(project.root, say, upgrade=True)
    moved = _moved(before, _versions(project.locks), security)
    # Only the first ones are shown.
    return Refreshed(release, tuple(sorted(moved, key=lambda line: not line.endswith(_SECURITY))))


def _versions(locks: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for path in sorted(locks.glob("*/*.toml")):
        data = tomllib.loads(path.read_text("utf-8"))
        entries = [*data.get("wheels", ()), *data.get("debs", ())]
        found[path.relative_to(locks).as_posix()] = {entry["name"]: entry["version"] for entry in entries}
    companions = CompanionLock.path(locks)
    if companions.exists():
        digests = {entry.name: f"{entry.tag}@{entry.digest[:19]}" for entry in CompanionLock.read(companions).images}
        found[companions.name] = digests
    own = LockedSet("test", locks / FOLDER.name / "test.txt")  # it holds what the smaller sets hold
    if own.path.exists():
        found[own.path.relative_to(locks).as_posix()] = own.pins()
    return found


def _moved(
    before: Mapping[str, Mapping[str, str]],
    after: Mapping[str, Mapping[str, str]],
    security: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    for lock, packages in after.items():
        old = before.get(lock)
        if old is None:
            yield f"{lock}: new, {len(packages)} packages"
            continue
        for name in sorted(old.keys() | packages.keys()):
            if old.get(name) != packages.get(name):
                mark = _SECURITY if name in security.get(lock, ()) else ""
                yield f"{lock}: {name} {old.get(name, 'nothing')} → {packages.get(name, 'nothing')}{mark}"
