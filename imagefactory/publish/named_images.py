"""Finds the images that owners name: by digest, by a tag and a day, or by a version that is locked."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from imagefactory.errors import UsageError
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.project.cells import Cell, default_version, reason_excluded
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.server_versions import TITLES, server_name
from imagefactory.project.targets import host_machine, select_one
from imagefactory.publish.catalog import Catalog, Published
from imagefactory.publish.image_contents import Contents, contents_in_registry, contents_of_plan
from imagefactory.publish.rollback import day_of
from imagefactory.publish.stored_catalog import read_catalog
from imagefactory.publish.tags import LATEST, NIGHTLY_VERSION

_DIGEST: Final = re.compile(r"(?:.*@)?(?:sha256:)?([0-9a-f]{6,64})")
_VERSION: Final = re.compile(rf"(?:(?:{'|'.join(TITLES)})-)?\d+\.\d[\w.-]*|{NIGHTLY_VERSION}")
_TAG: Final = re.compile(r"(?:.*:)?([\w.-]+?)(?:@(\d{4}-\d\d-\d\d))?", re.DOTALL)


def find_pair(project: Project, cell: Cell, have: str, want: str) -> tuple[Contents, Contents, Catalog]:
    """Find two images, and the catalog; without `want`, the second is the newest one for whoever has the first.

    Versions of the matrix mean the locked images of the cell's model and arch, and need no registry.
    """
    if _is_version(have) and (not want or _is_version(want)):
        before = _locked(project, cell, have)
        newer = want or newest_version(project.matrix, before.cell)
        return before, _locked(project, cell, newer), Catalog()
    with Repository.open(project.matrix.require_registry()) as repository:
        catalog = read_catalog(repository).catalog
        if _is_version(have):
            before, newest = _locked(project, cell, have), None
        else:
            image, newest = find_published(catalog, have)
            before = contents_in_registry(repository, image.digest)
        if _is_version(want):
            return before, _locked(project, before.cell, want), catalog
        after = find_published(catalog, want)[0] if want or newest is None else newest
        return before, contents_in_registry(repository, after.digest), catalog


def _is_version(named: str) -> bool:
    return _VERSION.fullmatch(named) is not None


def find_published(catalog: Catalog, named: str) -> tuple[Published, Published]:
    """Find an image by a digest, the start of one, or TAG[@DAY]; also the one that its owner gets today."""
    if digits := _DIGEST.fullmatch(named):
        found = [one for one in catalog.images if one.digest.removeprefix("sha256:").startswith(digits[1])]
        why = f"{'several images begin' if found else 'no image of the catalog begins'} with {digits[1]}"
    else:
        parsed = _TAG.fullmatch(named)
        tag, day = (parsed[1], parsed[2]) if parsed else (named, "")
        found = [image for image in [_named(catalog, tag, day)] if image]
        why = f"the catalog has no tag {tag!r}" + (f" on {day}" if day else "")
    if len(found) != 1:
        raise UsageError(
            "never-published",
            f"There is no such image: {why}.",
            where=f"the catalog, {named!r}",
            why="An image is named by its digest or the start of it, by a tag with or without a day, or by a version.",
            fix="`docker image ls --digests` shows what you have; `./inv catalog` and `./inv history` list images.",
        )
    return found[0], newest_for(catalog, found[0])


def newest_version(matrix: Matrix, cell: Cell) -> str:
    """Return the version that follows a cell's: the default, or of another server the newest; its own if none does."""
    known, default = matrix.versions, default_version(matrix, cell.model)
    others = [name for name, one in known.items() if server_name(name) == cell.server and one.release]
    fitting = [name for name in others if reason_excluded(matrix, replace(cell, version=name)) is None]
    newest = max(fitting, key=lambda name: known[name].version, default=cell.version)
    follows = default if server_name(default) == cell.server else newest
    return follows if known[follows].version > known[cell.version].version else cell.version


def newest_for(catalog: Catalog, image: Published) -> Published:
    """Return what the owner of an image gets today, by the most general tag that the image ever had."""
    tags = sorted(catalog.tags_of(image.digest) - {LATEST}, key=len)
    return catalog.current(tags, image.platform) or image


def _named(catalog: Catalog, tag: str, day: str | None) -> Published | None:
    last = day_of(day) if day else None
    moves = [event for event in catalog.moves([tag]) if last is None or event.time.date() <= last]
    images = moves[-1].moved[tag].images if moves else {}
    here = images.get(f"linux/{host_machine()}") or next(iter(images.values()), catalog.owners.get(tag))
    return catalog.image(here) if here else None


def _locked(project: Project, cell: Cell, version: str) -> Contents:
    named = select_one(project.matrix, f"{cell.model}@{version}/{cell.arch}/{cell.machine}")
    plan = make_plan(project, named)
    return contents_of_plan(project, plan, KnownLayers(project.known_layers).image(plan))
