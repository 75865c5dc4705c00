"""What came of trying a change on one version: texts before and after, or why it cannot become a mod there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from imagefactory.errors import ModError
from imagefactory.mods.source_files import ReleaseSource
from images.shipped.mods.manifest import IMAGE_FILES, path_fault
from images.shipped.mods.text import decoded

Outcome = Literal["changes", "nothing", "fails", "untried"]


@dataclass(frozen=True)
class TextChange:
    """A file before and after; `before` is None if the file is new."""

    before: str | None
    after: str


@dataclass(frozen=True)
class Attempt:
    """What came of trying a change on one version of the matrix."""

    version: str
    outcome: Outcome
    why: str = ""
    """Why nothing came of it."""
    distribution: str = ""
    files: Mapping[str, TextChange] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What a reviewer should know."""
    addresses: tuple[str, ...] = ()
    """What the script would have fetched."""


@dataclass(frozen=True)
class Distribution:
    """A locked distribution that a change may touch, with the names of its files."""

    name: str
    release: ReleaseSource
    paths: frozenset[str]

    @classmethod
    def of(cls, name: str, release: ReleaseSource) -> Distribution:
        """Read the names of a distribution's files from its wheel."""
        return cls(name, release, release.names())

    def may_hold(self, path: str) -> bool:
        """Whether a path is in a package of the distribution."""
        top = path.partition("/")[0]
        return path in self.paths or (top != path and f"{top}/__init__.py" in self.paths)


def settle(
    version: str,
    contents: Mapping[str, bytes],
    distributions: list[Distribution],
    *,
    notes: tuple[str, ...] = (),
) -> Attempt:
    """Turn new contents of files into an attempt; a path below IMAGE_FILES belongs to any distribution."""
    files: dict[str, TextChange] = {}
    owners: dict[str, list[str]] = {}
    for path, data in sorted(contents.items()):
        owner = next((one for one in distributions if one.may_hold(path)), None)
        change = _change(path, data, owner)
        if isinstance(change, str):
            return Attempt(version, "fails", change)
        if change.before != change.after:
            files[path] = change
            owners.setdefault(owner.name if owner is not None else "", []).append(path)
    named = [name for name in owners if name]
    if len(named) > 1:
        parts = "; ".join(f"{name}: {', '.join(owners[name][:3])}" for name in named)
        return Attempt(version, "fails", f"it changes several distributions, and a mod changes one ({parts})")
    if not files:
        return Attempt(version, "nothing", notes=notes)
    own = named[0] if named else distributions[0].name
    return Attempt(version, "changes", distribution=own, files=files, notes=notes)


def _change(path: str, data: bytes, owner: Distribution | None) -> TextChange | str:
    """Return a file before and after, or why no mod can change it like that."""
    inside = path.removeprefix(IMAGE_FILES)
    fault = path_fault(inside)
    if fault is not None:
        return f"it brings {path}, which {fault}"
    if inside == path and owner is None:
        return f"it changes {path}, which is in no package that it may change"
    try:
        before = owner.release.read(path) if owner is not None and path in owner.paths else None
        after = decoded(data, path)
    except ModError:
        return f"it changes {path}, which is not text"
    if before == "" or not after:
        return f"{path} is empty, before or after: an edit needs text"
    return TextChange(before, after)


def in_image(name: str) -> str:
    """Return where an image keeps a file that belongs to no distribution."""
    return IMAGE_FILES + PurePosixPath(name).name
