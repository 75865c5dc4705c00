"""Finds a version that lies in all of several ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

_FAR = 999_999


def common_version(*ranges: str) -> Version | None:
    """Return a version that lies in all ranges; None if there is none.

    A range begins and ends at the versions that it names or, for `==1.2.*` and `~=1.2.3`, at the next number of one of
    their parts. So it is enough to try these and their neighbours.
    """
    sets = [SpecifierSet(text) for text in ranges]
    found = (
        version
        for version in sorted(_probes(sets))
        if all(specifiers.contains(version, prereleases=True) for specifiers in sets)
    )
    return next(found, None)


def _probes(sets: Iterable[SpecifierSet]) -> set[Version]:
    probes = {Version("0"), Version(f"{_FAR}")}
    for specifier in (specifier for specifiers in sets for specifier in specifiers):
        try:
            named = Version(specifier.version.removesuffix(".*"))
        except InvalidVersion:  # `===` accepts any text
            continue
        probes.add(named)
        for release in _turning_points(named.release):
            text = ".".join(map(str, release))
            probes |= {Version(text), Version(f"{text}.dev0"), Version(f"{text}.0.0.1")}
    return probes


def _turning_points(release: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield a release, the next one for each of its parts, and the one right before each of those."""
    ends = [release, *((*release[:part], release[part] + 1) for part in range(len(release)))]
    for end in ends:
        yield end
        part = max((index for index, number in enumerate(end) if number), default=None)
        if part is not None:
            yield (*end[:part], end[part] - 1, _FAR)
