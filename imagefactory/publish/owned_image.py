"""Finds the image that an owner names: by a digest or id of any kind, by a tag and a day, or by a locked version."""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from typing import Final

from imagefactory.assemble.engines.docker import daemon
from imagefactory.errors import MOD_NOT_APPLICABLE, EngineError, ModError, RegistryError, UsageError
from imagefactory.oci.image import Image
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.project.cells import Cell, buildable, default_version, reason_excluded
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.server_versions import TITLES, server_name
from imagefactory.project.targets import host_machine, select_one
from imagefactory.publish.catalog import Catalog, Published
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.image_contents import Contents, contents_in_registry, contents_of_plan
from imagefactory.publish.rollback import day_of
from imagefactory.publish.stored_catalog import read_catalog
from imagefactory.publish.tags import LATEST, NIGHTLY_VERSION
from imagefactory.store.digests import Digest

_DIGEST: Final = re.compile(r"(?:.*@)?(?:sha256:)?([0-9a-f]{6,64})")
_VERSION: Final = re.compile(rf"(?:(?:{'|'.join(TITLES)})-)?\d+\.\d[\w.-]*|{NIGHTLY_VERSION}")
_TAG: Final = re.compile(r"(?:.*:)?([\w.-]+?)(?:@(\d{4}-\d\d-\d\d))?", re.DOTALL)
_UNIQUE: Final = 12  # hexadecimal digits that no two images share


def find_pair(project: Project, cell: Cell, have: str, want: str) -> tuple[Contents, Contents, Catalog]:
    """Find two images, and the catalog; without `want`, the second is the newest one for whoever has the first.

    Versions of the matrix mean the locked images of the cell's model and arch, and need no registry; nor do the
    digests and ids of images that this checkout makes.
    """
    if _is_version(have) and (not want or _is_version(want)):
        before = _locked(project, cell, have)
        newer = want or newest_version(project.matrix, before.cell)
        return before, _locked(project, cell, newer), Catalog()
    with ExitStack() as stack:
        search = _Search(project, stack)
        if _is_version(have):
            before, newest = _locked(project, cell, have), None
        else:
            before, newest = search.find(have)
        if _is_version(want):
            return before, _locked(project, before.cell, want), search.catalog
        after = search.find(want)[0] if want or newest is None else newest
        return before, after, search.catalog


def _is_version(named: str) -> bool:
    return _VERSION.fullmatch(named) is not None


class _Search:
    """Looks for images in the catalog, and by digest or id also in Docker and among those of this checkout."""

    def __init__(self, project: Project, stack: ExitStack) -> None:
        self._project = project
        self._failure: RegistryError | None = None
        self.catalog = Catalog()
        try:
            self._repository = stack.enter_context(Repository.open(project.matrix.require_registry()))
            self.catalog = read_catalog(self._repository).catalog
        except RegistryError as error:
            self._failure = error  # raised only if no other place has the image

    def find(self, named: str) -> tuple[Contents, Contents]:
        """Return an image, and the one that its owner gets today."""
        digits, names = _DIGEST.fullmatch(named), [named]
        for name in names:
            with suppress(UsageError):
                return self._read(*find_published(self.catalog, name))
            if digits and name is named:
                names += in_docker(digits[1])
        keys = [name.rpartition("@")[2].removeprefix("sha256:") for name in names]
        if digits and (planned := find_planned(self._project, keys)):
            plan, image = planned
            before = contents_of_plan(self._project, plan, image)
            newest = newest_version(self._project.matrix, plan.cell)
            return before, before if newest == plan.version else _locked(self._project, plan.cell, newest)
        if self._failure:
            raise self._failure
        return self._read(*find_published(self.catalog, named))  # raises

    def _read(self, image: Published, newest: Published) -> tuple[Contents, Contents]:
        before, after = (
            contents_in_registry(Dossier.read(self._repository, found.digest)) for found in (image, newest)
        )
        return before, after


def in_docker(digits: str) -> Iterator[str]:
    """Yield other names of an image that Docker knows by this id: the digests it was pulled by, and its plan."""
    with suppress(EngineError):
        attributes = daemon.inspect(digits) or {}
        yield from attributes.get("RepoDigests") or ()
        labels = (attributes.get("Config") or {}).get("Labels") or {}
        if plan := labels.get("imagefactory.plan"):
            yield str(plan)


def find_planned(project: Project, beginnings: list[str]) -> tuple[Plan, Image] | None:
    """Find the image of this checkout whose digest, image ID or plan begins with one of these; raise if several do."""
    matches = (
        (plan, image)
        for plan, image in _planned(project)
        if any(
            name.startswith(digits)
            for digits in beginnings
            for name in (plan.key, *(digest.partition(":")[2] for digest in (image.digest, image.config_digest)))
        )
    )
    few = list(islice(matches, 1 if min(map(len, beginnings)) >= _UNIQUE else None))
    if len(few) > 1:
        raise _no_such_image(beginnings[0], f"several images begin with {beginnings[0]}")
    return few[0] if few else None


def _planned(project: Project) -> Iterator[tuple[Plan, Image]]:
    """Yield the images that this checkout makes, those that were built here first."""
    known = KnownLayers(project.known_layers)
    locked = (cell for cell in buildable(project.matrix) if project.is_locked(cell))
    for cell in sorted(locked, key=lambda cell: not project.build_folder(cell).exists()):
        try:
            plan = make_plan(project, cell)
        except ModError as error:
            if error.name != MOD_NOT_APPLICABLE:
                raise
            continue
        if image := known.image(plan):
            yield plan, image


def find_published(catalog: Catalog, named: str) -> tuple[Published, Published]:
    """Find an image by the start of a digest or plan, by an index, or by TAG[@DAY]; also what its owner gets today."""
    if digits := _DIGEST.fullmatch(named):
        matches = [
            image
            for image in catalog.images
            if any(name.startswith(digits[1]) for name in (image.digest.removeprefix("sha256:"), image.plan_key))
        ] or _in_index(catalog, digits[1])
        why = f"{'several images begin' if matches else 'no image of the catalog begins'} with {digits[1]}"
    else:
        parsed = _TAG.fullmatch(named)
        tag, day = (parsed[1], parsed[2]) if parsed else (named, "")
        matches = [image for image in [_named(catalog, tag, day)] if image]
        why = f"the catalog has no tag {tag!r}" + (f" on {day}" if day else "")
    if len(matches) != 1:
        raise _no_such_image(named, why)
    return matches[0], newest_for(catalog, matches[0])


def _no_such_image(named: str, why: str) -> UsageError:
    return UsageError(
        "never-published",
        f"There is no such image: {why}.",
        where=f"the catalog, {named!r}",
        why="An image is named by its digest, image ID or the start of one, by a tag with or without a day, or by a "
        "version. Of images that were never published, this checkout knows those that its locks make today.",
        fix="`docker image ls --digests` shows what you have; `./inv catalog` and `./inv history` list images.",
    )


def _in_index(catalog: Catalog, digits: str) -> list[Published]:
    """Find the image for this machine in an index whose digest begins so: `docker pull` shows that of the index."""
    pointers = [pointer for event in catalog.events for pointer in event.moved.values()]
    indexes = {p.digest: p.images for p in pointers if p.digest.removeprefix("sha256:").startswith(digits)}
    images = (catalog.image(digest) for index in indexes.values() if (digest := _for_this_machine(index)))
    return list({image.digest: image for image in images if image}.values())


def _for_this_machine(images: Mapping[str, Digest]) -> Digest | None:
    return images.get(f"linux/{host_machine()}") or next(iter(images.values()), None)


def newest_version(matrix: Matrix, cell: Cell) -> str:
    """Return the version that follows a cell's: the default, or of another server the newest; its own if none does."""
    versions, default = matrix.versions, default_version(matrix, cell.model)
    releases = [name for name, version in versions.items() if server_name(name) == cell.server and version.release]
    fitting = [name for name in releases if reason_excluded(matrix, replace(cell, version=name)) is None]
    newest = max(fitting, key=lambda name: versions[name].version, default=cell.version)
    follows = default if server_name(default) == cell.server else newest
    return follows if versions[follows].version > versions[cell.version].version else cell.version


def newest_for(catalog: Catalog, image: Published) -> Published:
    """Return what the owner of an image gets today, by the most general tag that the image ever had."""
    # A shorter tag is more general: MODEL, MODEL-vVLLM. What `latest` names may become another model.
    tags = sorted(catalog.tags_of(image.digest) - {LATEST}, key=len)
    return catalog.current(tags, image.platform) or image


def _named(catalog: Catalog, tag: str, day: str | None) -> Published | None:
    last = day_of(day) if day else None
    moves = [event for event in catalog.moves([tag]) if last is None or event.time.date() <= last]
    images = moves[-1].moved[tag].images if moves else {}
    digest = _for_this_machine(images) or catalog.owners.get(tag)
    return catalog.image(digest) if digest else None


def _locked(project: Project, cell: Cell, version: str) -> Contents:
    named = select_one(project.matrix, f"{cell.model}@{version}/{cell.arch}/{cell.machine}")
    plan = make_plan(project, named)
    return contents_of_plan(project, plan, KnownLayers(project.known_layers).image(plan))
