"""Prepares what is new in a checkout: newer packages in the locks, and new releases of servers."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from imagefactory.assemble.assemble import drop_unneeded
from imagefactory.ci.new_release import NewRelease
from imagefactory.ci.news import SECURITY, News, has_releases, in_short, look, new_releases
from imagefactory.ci.pull_request import git
from imagefactory.environment.locks import lock_environment
from imagefactory.environment.setup import FOLDER, LockedSet
from imagefactory.errors import LockError
from imagefactory.lock.making import UPGRADE_ALL, UPGRADE_COMPANIONS, make_locks
from imagefactory.project.locks.files import CompanionLock, LicenceLock
from imagefactory.project.project import Project, locked_cells
from imagefactory.project.server_versions import TITLES
from imagefactory.publish.attest.licence_record import Licences, update_licences
from imagefactory.publish.attest.spdx import UNDECLARED
from imagefactory.store.indexes import Indexes
from imagefactory.store.progress import Say


def prepare(project: Project, indexes: Indexes, upgrade: Sequence[str], say: Say) -> News:
    """Upgrade packages in the locks; add and lock a new release of each server wherever its newest one is locked."""
    before, news = _versions(project.locks), look(project, indexes)
    security = _upgrade(project, upgrade, news, say) if upgrade else {}
    for server in TITLES:
        now = Project(project.root, project.store)
        for release in new_releases(now.matrix, server, indexes)[-1:] if has_releases(now.matrix, server) else ():
            NewRelease(now, server, release, news, say).add()
    now = Project(project.root, project.store)
    known = _undeclared(now)
    update_licences(now, say)
    if unknown := sorted(_undeclared(now) - known):
        news.decisions.append(f"No licence is declared by {', '.join(unknown)}: put it into `locks/licences.toml`.")
    drop_unneeded(now)
    news.after = {title: here for title, (_, here) in look(now, indexes).releases.items()}
    moved = _moved(before, _versions(project.locks), security)
    # Only the first ones are shown.
    news.packages = sorted(moved, key=lambda line: not line.endswith(SECURITY))
    return news


def _undeclared(project: Project) -> set[str]:
    recorded = Licences(LicenceLock.path(project.locks)).files.values()
    return {entry.file.partition("-")[0] for entry in recorded if entry.licence == UNDECLARED}


def commit(tree: Path) -> bool:
    """Commit what was prepared in a worktree; return whether anything was."""
    git(tree, "add", "--all")
    if not git(tree, "status", "--porcelain"):
        return False
    git(tree, "commit", "--quiet", "--message", "Take what is new on the package index")
    return True


def _upgrade(project: Project, upgrade: Sequence[str], news: News, say: Say) -> dict[str, Sequence[str]]:
    """Upgrade packages, all or none; return the Debian packages of each lock with a security update."""
    everything = UPGRADE_ALL in upgrade
    names = [*upgrade, UPGRADE_COMPANIONS] if everything else upgrade
    try:
        made = list(make_locks(project, locked_cells(project), upgrade=names, say=say))
        if everything:
            lock_environment(project.root, say, upgrade=True)
    except LockError as error:
        git(project.root, "checkout", "--quiet", "--", "locks")
        news.breaks.append(f"No package is upgraded: {in_short(f'{error.what} {error.why}')}")
        return {}
    return {result.path.relative_to(project.locks).as_posix(): result.security for result in made}


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
        old = before.get(lock, packages)  # what a new lock has has not moved
        for name in sorted(old.keys() | packages.keys()):
            if old.get(name) != packages.get(name):
                mark = SECURITY if name in security.get(lock, ()) else ""
                yield f"{lock}: {name} {old.get(name, 'nothing')} → {packages.get(name, 'nothing')}{mark}"
