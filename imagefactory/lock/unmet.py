"""Says which requirement of a release no index can meet, and which version comes nearest to it."""

from collections.abc import Container, Iterator
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from imagefactory.errors import LockError
from imagefactory.lock.wheel_locks import tag_ranks
from imagefactory.project.cells import Cell
from imagefactory.project.matrix import Matrix
from imagefactory.project.server_versions import Override
from imagefactory.store.indexes import Indexes

_FLOORS, _EXACT, _CEILINGS = {">=", ">"}, {"==", "===", "~="}, {"<", "<="}


@dataclass(frozen=True)
class Unmet:
    """A requirement that no index can meet, and why."""

    requirement: Requirement
    asked_by: str
    lack: str
    nearest: Version | None  # of the versions that can be had

    def __str__(self) -> str:
        return f"{self.asked_by} asks for {self.requirement}, and {self.lack}"

    @property
    def override(self) -> Override | None:
        """What stands in for the requirement until an index can meet it; None if it has no other version."""
        if self.nearest is None:
            return None
        name = str(self.requirement).removesuffix(str(self.requirement.specifier))
        # In place of a floor comes a lower one: later versions of the package fulfil both.
        only_floors = {clause.operator for clause in self.requirement.specifier} <= _FLOORS
        operator = ">=" if only_floors else "=="
        return Override(requirement=f"{name}{operator}{self.nearest}", reason=str(self), until=str(self.requirement))


def first_unmet(
    failure: LockError, matrix: Matrix, cell: Cell, indexes: Indexes, overridden: Container[str]
) -> Unmet | None:
    """Return the first requirement in the resolver's words that no index can meet for a cell.

    Its words only say where to look: a requirement that an index can meet is in a conflict, which people resolve.
    """
    for asked_by, requirement in _requirements(failure.why):
        unmet = look_for(requirement, matrix, cell, indexes, asked_by)
        if unmet is not None and canonicalize_name(requirement.name) not in overridden:
            return unmet
    return None


def _requirements(words: str) -> Iterator[tuple[str, Requirement]]:
    """Find `NAME depends on REQUIREMENT`; of several versions of a package, the newest asked for comes first."""
    parts = words.split()
    asked: dict[str, list[tuple[str, Requirement]]] = {}
    for number, verb in enumerate(parts[1:-2], 1):
        # uv's `one of:` a list has parts of a requirement with an exclusion, none of which says what would lift it.
        if (
            verb in {"depend", "depends"}
            and parts[number + 1] == "on"
            and parts[number + 2 : number + 4] != ["one", "of:"]
        ):
            try:
                requirement = Requirement(parts[number + 2].rstrip(",."))
            except InvalidRequirement:
                continue
            asking = parts[number - 1]
            end = min((asking.find(sign) for sign in "[<>=!~" if sign in asking), default=len(asking))
            asked.setdefault(requirement.name, []).append((asking[:end], requirement))
    for alternatives in asked.values():
        yield max(alternatives, key=lambda entry: _wanted(entry[1].specifier) or Version("0"))


def look_for(requirement: Requirement, matrix: Matrix, cell: Cell, indexes: Indexes, asked_by: str) -> Unmet | None:
    """Compare a requirement with what indexes have for a cell; None if they can meet it."""
    arch = matrix.archs[cell.arch]
    base = matrix.bases[arch.base]
    tags = tag_ranks(base.python, base.glibc, cell.platform).keys()
    usable: set[Version] = set()
    yanked: set[Version] = set()
    misfit: set[Version] = set()
    files = indexes.files(requirement.name)
    for location in files:
        try:
            _, version, _, file_tags = parse_wheel_filename(location.file)
        except ValueError:  # an sdist, no name of a wheel, or a version of thousands of digits
            continue
        if version.local in (None, *arch.local_versions):
            (misfit if tags.isdisjoint(file_tags) else yanked if location.yanked else usable).add(version)
    if any(version in requirement.specifier for version in usable):
        return None
    wanted, final = _wanted(requirement.specifier), [version for version in usable if not version.is_prerelease]
    if any(version in requirement.specifier for version in yanked):
        lack = "its makers withdrew (yanked) that version"
    elif any(version in requirement.specifier for version in misfit):
        lack = f"no wheel of it runs with Python {base.python} on {cell.platform}"
    elif not files:
        lack = "no index has a package of that name"
    elif final and wanted is not None and max(final) < wanted:
        lack = f"the newest on the index is {max(final)}"
    else:
        lack = "the index has no such version"
    return Unmet(requirement, asked_by, lack, _nearest(final, wanted))


def _wanted(specifier: SpecifierSet) -> Version | None:
    """Return the version that a requirement is about: 2.0 of `==2.0`, `>=2.0`, `>=2.0,<3` and `<2.0`."""
    for operators in (_FLOORS | _EXACT, _CEILINGS):
        versions = [Version(clause.version.removesuffix(".*")) for clause in specifier if clause.operator in operators]
        if versions:
            return max(versions)
    return None


def _nearest(versions: list[Version], wanted: Version | None) -> Version | None:
    """Return the next version or the one before: whichever has more of the wanted one's leading numbers."""
    if wanted is None:
        return max(versions, default=None)
    later = [version for version in versions if version > wanted]
    earlier = [version for version in versions if version < wanted]

    def shared(version: Version) -> int:
        pairs = list(zip(version.release, wanted.release, strict=False))
        return next((number for number, (one, other) in enumerate(pairs) if one != other), len(pairs))

    # max() returns the first of equals: the later version.
    return max([*sorted(later)[:1], *sorted(earlier)[-1:]], key=shared, default=None)
