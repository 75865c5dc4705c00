"""Parses Debian dependencies, such as `a (>= 1.2) | b, c:any`, and finds the packages that satisfy them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from debian.deb822 import PkgRelation
from debian.debian_support import Version

from imagefactory.lock.debian_index import Index

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">>": operator.gt,
}
_PRIORITIES = ("required", "important", "standard", "optional", "extra")


@dataclass(frozen=True, order=True)
class Relation:
    """A package name and the versions of it that are acceptable."""

    name: str
    architecture: str = ""
    comparison: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.comparison} {self.version})" if self.comparison else self.name

    def allows(self, version: str) -> bool:
        """Whether a version is acceptable."""
        return not self.comparison or _COMPARE[self.comparison](Version(version), Version(self.version))


Alternatives = tuple[Relation, ...]


def parse_depends(text: str) -> Iterator[Alternatives]:
    """Parse a Depends field: every group is needed, and any alternative satisfies a group."""
    for group in PkgRelation.parse_relations(text) if text else ():
        yield tuple(
            Relation(one["name"], one["archqual"] or "", *(one["version"] or ("", ""))) for one in group
        )


class Choices:
    """Finds the packages of an index that satisfy a dependency, the preferred one first."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._provided: dict[str, list[tuple[str, str]]] = {}
        for package in index.packages.values():
            for (offer,) in parse_depends(package.provides):
                self._provided.setdefault(offer.name, []).append((package.name, offer.version))

    def satisfying(self, alternatives: Alternatives) -> tuple[str, ...]:
        """List the packages that satisfy one dependency, in the order of its alternatives."""
        return tuple(dict.fromkeys(name for one in alternatives for name in self._satisfying(one)))

    def providers(self, name: str) -> list[str]:
        """List the packages that provide a name, by priority and then by name."""
        return sorted({package for package, _ in self._provided.get(name, ())}, key=self._by_priority)

    def _satisfying(self, relation: Relation) -> Iterator[str]:
        if relation.architecture not in {"", "any", "native", self._index.architecture}:
            return
        real = self._index.packages.get(relation.name)
        if real is not None and relation.allows(real.version):
            yield real.name
        offers = dict(self._provided.get(relation.name, ()))
        for package in sorted(offers, key=self._by_priority):
            # Debian policy 7.5: an unversioned Provides satisfies no versioned dependency.
            if not relation.comparison or (offers[package] and relation.allows(offers[package])):
                yield package

    def _by_priority(self, name: str) -> tuple[int, str]:
        priority = self._index.packages[name].priority
        rank = _PRIORITIES.index(priority) if priority in _PRIORITIES else len(_PRIORITIES)
        return rank, name
