"""The tags that a cell's image gets in the registry, and which of them move.

docs/publishing.md lists them. Where an arch runs on several platforms, a moving tag is an index with an image for each.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Final

from imagefactory.errors import ConfigError
from imagefactory.oci.registry.reference import is_tag
from imagefactory.project.cells import Cell, buildable, default_version, preferred_version
from imagefactory.project.matrix import Matrix
from imagefactory.project.targets import default_target
from imagefactory.store.digests import Sha256

CATALOG: Final = "catalog"
LATEST: Final = "latest"
STAGING: Final = "staging-"
NIGHTLY: Final = "nightly-"
NIGHTLY_VERSION: Final = "nightly"
"""The vLLM version of the matrix whose images always get dated tags."""
KEY_DIGITS: Final = 12
_DATED = re.compile(r"nightly-(\d{8})-.+")
_RESERVED = re.compile(rf"{CATALOG}|{LATEST}|({STAGING}|{NIGHTLY}|sha256-|wheel-).*")
"""`sha256-` are lists of referrers and signatures, `wheel-` is the wheelhouse."""


@dataclass(frozen=True)
class Tags:
    """The tags of one image."""

    fixed: str
    """The tag that never moves."""
    dated: tuple[str, ...]
    """The day's nightly tag; the first image to claim it keeps it."""
    moving: tuple[str, ...]
    """In the order in which they are moved: the most specific first."""


def staging_tag(key: Sha256) -> str:
    """Return the tag under which an image is pushed before it is tested."""
    return f"{STAGING}{key}"


def fixed_tag(cell: Cell, key: Sha256) -> str:
    """Return the tag of a published image that never moves; the plan's key in it also tells platforms apart."""
    return f"{cell.model_and_version}-{cell.arch}-{key[:KEY_DIGITS]}"


def possible_tags(matrix: Matrix, cell: Cell) -> tuple[str, ...]:
    """Return the moving tags that a cell may get; the short ones are for the model's default arch.

    Two versions may get those: the preferred one, and the default until there is an image of that.
    """
    tags = [cell.model_and_version]
    if not is_home(matrix, cell):
        return (checked(f"{tags[0]}-{cell.arch}", cell),)
    if cell.version in (preferred_version(matrix, cell.model, cell.arch), default_version(matrix, cell.model)):
        tags += short_tags(matrix, cell)
    return tuple(checked(tag, cell) for tag in tags)


def short_tags(matrix: Matrix, cell: Cell) -> tuple[str, ...]:
    """Return the tags of a model that name no version."""
    return (cell.model, LATEST) if cell.model == default_target(matrix) else (cell.model,)


def is_home(matrix: Matrix, cell: Cell) -> bool:
    """Whether a cell is on its model's default arch."""
    return cell.arch == (matrix.models[cell.model].arch or matrix.defaults.arch)


def nightly_date(tag: str) -> date | None:
    """Return the day in a nightly's tag, or None for any other tag."""
    match = _DATED.fullmatch(tag)
    with suppress(ValueError):
        return date.fromisoformat(match[1]) if match else None
    return None


def names_image(matrix: Matrix, tag: str, cell: Cell, key: Sha256) -> bool | None:
    """Whether a tag may name this image of a cell; None if it is not one of the factory's tags."""
    cells = buildable(matrix)
    if tag in {fixed_tag(cell, key), staging_tag(key)}:
        return True
    if nightly_date(tag):
        return cell in cells and is_home(matrix, cell) and tag[len(f"{NIGHTLY}00000000-") :] == cell.model
    if cell in cells and tag in possible_tags(matrix, cell):
        return True
    named, _, _ = tag.rpartition("-")
    others = any(
        named == f"{candidate.model_and_version}-{candidate.arch}" or tag in possible_tags(matrix, candidate)
        for candidate in cells
    )
    return False if others or _RESERVED.fullmatch(tag) else None


def refuse_ambiguous(matrix: Matrix) -> None:
    """Refuse a matrix whose names give two cells the same tag, or a cell a reserved tag."""
    owners: dict[str, Cell] = {}
    for cell in buildable(matrix):
        for tag in possible_tags(matrix, cell):
            if _RESERVED.fullmatch(tag) and tag != LATEST:
                why = "Tags of that form are reserved for the factory."
                raise _bad_tag(cell, f"{cell} would be published as {tag!r}.", why, "Rename the model.")
            owner = owners.setdefault(tag, cell)
            # Platforms of one arch share a tag, which is then an index. Two versions of a model take turns on its short
            # tags.
            same_version = owner.version == cell.version or tag in short_tags(matrix, cell)
            if (owner.model, owner.arch) != (cell.model, cell.arch) or not same_version:
                what = f"{owner} and {cell} would both be published as {tag!r}."
                raise _bad_tag(cell, what, "Their names make the same tag.", "Rename one of them.")


def checked(tag: str, cell: Cell) -> str:
    """Return a tag, unless registries do not accept it."""
    if not is_tag(tag):
        why = f"{tag!r} is longer than 128 characters, or has characters that a tag may not have."
        fix = "Give the model, the vLLM version or the arch a shorter name."
        raise _bad_tag(cell, f"Registries do not accept the tag of {cell}.", why, fix)
    return tag


def _bad_tag(cell: Cell, what: str, why: str, fix: str) -> ConfigError:
    return ConfigError("bad-tag", what, where=f"matrix.yaml, models.{cell.model}", why=why, fix=fix)


def short_digest(digest: str) -> str:
    """Shorten a digest for display; `rollback --to` accepts the short form."""
    return digest.removeprefix("sha256:")[:KEY_DIGITS]
