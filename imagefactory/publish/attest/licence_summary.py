"""The licence summary of an image: how many parts have which licence, and the GPL, LGPL and AGPL parts by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from imagefactory.plan.plan import Plan
from imagefactory.project.project import Project
from imagefactory.publish.attest import spdx
from imagefactory.publish.attest.components import Component, components_of

How = Literal["declared", "by choice", "in notices"]
"""A GNU licence applies to a part (or to some of it), is one that may be chosen, or is mentioned in its notices."""


@dataclass(frozen=True)
class GnuPart:
    """A part with a GNU licence in its expression."""

    kind: str
    name: str
    version: str
    licences: tuple[str, ...]
    how: How


@dataclass(frozen=True)
class LicenceSummary:
    """The licences of an image's parts."""

    target: str
    counts: dict[str, int]
    """Licence expression -> number of parts."""
    gnu: tuple[GnuPart, ...]
    undeclared: tuple[str, ...]
    elsewhere: tuple[str, ...]
    """Models that are downloaded when the image starts; their licences are on their own pages."""


def summarise(project: Project, plan: Plan) -> LicenceSummary:
    return summarise_parts(plan.target, components_of(project, plan))


def summarise_parts(target: str, parts: Sequence[Component]) -> LicenceSummary:
    inside = [part for part in parts if part.in_image]
    counts = Counter(part.licence or spdx.UNDECLARED for part in inside)
    return LicenceSummary(
        target=target,
        counts=dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        gnu=tuple(gnu for part in inside if (gnu := _gnu(part)) is not None),
        undeclared=tuple(part.name for part in inside if part.licence in (None, spdx.UNDECLARED)),
        elsewhere=tuple(part.name for part in parts if not part.in_image),
    )


def _gnu(part: Component) -> GnuPart | None:
    expression = part.licence or ""
    named = spdx.copyleft(expression)
    how: How = "declared" if named and spdx.is_unavoidable(expression) else "by choice"
    if not named and part.notices:
        named, how = part.notices, "in notices"
    return GnuPart(part.kind, part.name, part.version, named, how) if named else None
