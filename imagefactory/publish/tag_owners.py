"""Which moving tags an image gets, by what was published before: two versions of a model share its short tags."""

from collections.abc import Collection
from dataclasses import replace
from datetime import date

from imagefactory.project.cells import Cell, default_version, preferred_version
from imagefactory.project.matrix import Matrix
from imagefactory.publish.catalog import Catalog
from imagefactory.publish.tags import (
    NIGHTLY,
    NIGHTLY_VERSION,
    Tags,
    checked,
    fixed_tag,
    is_home,
    possible_tags,
    short_tags,
)
from imagefactory.store.digests import Sha256


def tags_of(matrix: Matrix, catalog: Catalog, cell: Cell, key: Sha256, day: date, *, nightly: bool = False) -> Tags:
    dated = nightly or cell.version == NIGHTLY_VERSION
    return Tags(
        fixed=checked(fixed_tag(cell, key), cell),
        dated=(checked(f"{NIGHTLY}{day:%Y%m%d}-{cell.model}", cell),) if dated and is_home(matrix, cell) else (),
        moving=moving_tags(matrix, catalog, cell),
    )


def moving_tags(matrix: Matrix, catalog: Catalog, cell: Cell) -> tuple[str, ...]:
    """Return the moving tags that an image of a cell gets today.

    An image of the preferred version always takes the short ones: it passed. One of the default does while users of
    them do not get the preferred version.
    """
    model, arch = cell.model, cell.arch
    short = cell.version in (
        preferred_version(matrix, model, arch),
        tagged_version(matrix, catalog, model, arch, cell.platform),
    )
    return tuple(tag for tag in possible_tags(matrix, cell) if short or tag not in short_tags(matrix, cell))


def tags_for_users(matrix: Matrix, catalog: Catalog, cell: Cell, cells: Collection[Cell]) -> tuple[str, ...]:
    """Return the moving tags by which users get images of a cell, one of these that can be built.

    Two versions may have a model's short tags: here, the one that has them today does, else the preferred one.
    """
    tags, today = moving_tags(matrix, catalog, cell), catalog.current([cell.model], cell.platform)
    rivals = [replace(cell, version=preferred_version(matrix, cell.model, cell.arch))]
    rivals.append(replace(cell, version=default_version(matrix, cell.model)))
    owner = next((rival for rival in rivals if today and today.version == rival.version), None)
    owner = owner or next((rival for rival in rivals if rival in cells), cell)
    return tuple(tag for tag in tags if cell == owner or tag not in short_tags(matrix, cell))


def tagged_version(matrix: Matrix, catalog: Catalog, model: str, arch: str, platform: str) -> str:
    """Return the version that a model's short tags follow: the preferred one, if it has an image, else the default.

    An image that was rolled back does not count. It keeps the tag of its own version, if it was the first there.
    """
    preferred = Cell(model, preferred_version(matrix, model, arch), arch, platform)
    image = catalog.current([preferred.model_and_version], platform)
    passed = image is not None and image.digest not in catalog.holds([model])
    return preferred.version if passed else default_version(matrix, model)
