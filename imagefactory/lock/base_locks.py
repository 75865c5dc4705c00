"""Locks the Debian packages of a base: those named in matrix.yaml, and everything they depend on.

Depends and Pre-Depends are followed; Recommends are not. Conflicts and Breaks are ignored on purpose: a base made
from scratch upgrades nothing, and two packages that own the same path fail when they are unpacked. Essential packages
are not added implicitly: only what matrix.yaml lists is installed.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import get_close_matches

from debian.debian_support import Version

from imagefactory.errors import Location, LockError, did_you_mean
from imagefactory.lock.debian_index import Alternatives, Choices, Index, IndexedPackage, parse_depends
from imagefactory.lock.mirrors import SNAPSHOT_DATE, DebianMirrors, join
from imagefactory.project.locks.files import BaseLock, LockedDeb, LockedSuite, MadeFrom
from imagefactory.store.progress import Say, count

ROOT = "matrix.yaml"  # what `needed_by` says for packages that the matrix itself names


def lock_base(
    index: Index, *, base: str, packages: Sequence[str], platform: str, made_from: MadeFrom, say: Say
) -> BaseLock:
    """Pin every Debian package of a base on one platform, from the signed index of its release."""
    needed_by = closure(index, packages)
    shared = [name for name in LockedDeb.model_fields if name != "needed_by"]
    debs = tuple(
        LockedDeb(
            **{field: getattr(index.packages[name], field) for field in shared},
            needed_by=tuple(sorted(needed_by[name])),
        )
        for name in sorted(needed_by)
    )
    megabytes = sum(deb.size for deb in debs) / 1e6
    say(f"{base} for {platform}: {count(len(debs), 'package')}, {megabytes:.0f} MB to download")
    return BaseLock(made_from=made_from, base=base, platform=platform, suites=index.suites, debs=debs)


def security_updates(old: BaseLock, new: BaseLock, index: Index) -> tuple[str, ...]:
    """Name the packages whose update includes one from the security suite, even if another suite has overtaken it."""
    before = {deb.name: Version(deb.version) for deb in old.debs}
    return tuple(
        deb.name
        for deb in new.debs
        if deb.name in before
        and deb.name in index.security
        and before[deb.name] < Version(index.security[deb.name]) <= Version(deb.version)
    )


def closure(index: Index, roots: Sequence[str]) -> dict[str, set[str]]:
    """Find all packages that the roots depend on, each with the packages that need it.

    Dependencies with a single candidate are followed first. Only then is the first open choice settled: a package that
    is already selected wins, otherwise the first alternative does. The result does not depend on the input order.
    """
    choices = Choices(index)
    needed_by: dict[str, set[str]] = {}
    open_choices: list[tuple[str, int, Alternatives, tuple[str, ...]]] = []
    queue: list[tuple[str, str]] = []
    for name in sorted(set(roots)):
        if name not in index.packages:
            raise _no_such_package(name, index, choices)
        queue.append((name, ROOT))

    while queue or open_choices:
        if not queue:
            open_choices.sort()
            who, _, _, candidates = open_choices.pop(0)
            queue.append((next((name for name in candidates if name in needed_by), candidates[0]), who))
        name, who = queue.pop()
        new = name not in needed_by
        needed_by.setdefault(name, set()).update({who} - {name})
        if not new:
            continue
        for position, alternatives in enumerate(parse_depends(index.packages[name].depends)):
            candidates = choices.satisfying(alternatives)
            if not candidates:
                raise _unsatisfiable(index.packages[name], alternatives, index)
            if len(candidates) == 1:
                queue.append((candidates[0], name))
            else:
                open_choices.append((name, position, alternatives, candidates))
    return needed_by


def deb_locations(deb: LockedDeb, suites: Sequence[LockedSuite], mirrors: DebianMirrors) -> list[str]:
    """List the URLs of a locked package in the order to try: mirrors first, then the snapshots of that day."""
    dates = [suite.date for suite in suites if suite.archive == deb.archive]
    # When its last suite was signed, the archive had every file that the lock names.
    signed = datetime.strptime(max(dates), SNAPSHOT_DATE).replace(tzinfo=UTC) if dates else None
    return [join(root, deb.file) for root in mirrors.roots(deb.archive, at=signed)]


def _no_such_package(name: str, index: Index, choices: Choices) -> LockError:
    why, fix = f"No suite of {index.debian} has it for {index.architecture}.", _nearest(name, index)
    if providers := choices.providers(name):
        why = f"{name} is a virtual package that others provide."
        fix = f"Name one of them: {', '.join(providers)}."
    what = f"There is no Debian package {name}."
    return LockError("no-debian-package", what, where=Location(file=ROOT), why=why, fix=fix)


def _unsatisfiable(package: IndexedPackage, alternatives: Alternatives, index: Index) -> LockError:
    candidates = [index.packages[relation.name] for relation in alternatives if relation.name in index.packages]
    return LockError(
        "no-debian-package",
        f"{package.name} {package.version} needs {' | '.join(map(str, alternatives))}, which Debian {index.debian} "
        "does not have.",
        where=package.file,
        why=f"There is {', '.join(f'{deb.name} {deb.version}' for deb in candidates) or 'nothing of that name'}.",
        fix="The mirror may be updating: try again, or use another one (FACTORY_DEBIAN_MIRROR).",
    )


def _nearest(name: str, index: Index) -> str:
    near = get_close_matches(name, index.packages, n=3, cutoff=0.6)
    return did_you_mean(name, near) if near else "Check the spelling."
