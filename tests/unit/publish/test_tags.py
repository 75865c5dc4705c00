"""Tags: which cell gets which, and which names are refused."""

from dataclasses import replace
from datetime import date
from functools import partial

import pytest
import yaml

from imagefactory.check.smoke.record import Level
from imagefactory.project.cells import Cell
from imagefactory.project.matrix import Matrix, SmokeLevel, load_matrix
from imagefactory.project.targets import select_one
from imagefactory.publish.catalog import Catalog
from imagefactory.publish.tag_owners import moving_tags, tagged_version, tags_for_users, tags_of
from imagefactory.publish.tags import fixed_tag, names_image, nightly_date, possible_tags, refuse_ambiguous
from imagefactory.store.digests import Sha256
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.small_catalogs import digest, image, promoted, rolled_back
from tests.fixtures.small_matrix import MATRIX

KEY = Sha256("0123456789abcdef" * 4)
DAY = date(2026, 11, 5)
NONE = Catalog()


MODEL = {"repo": "a/b", "vllm": ">=0", "weights": "bf16"}
RELEASE = Cell("large", "3.0", "spark", "linux/arm64")


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return changed()


def changed(**changes: object) -> Matrix:
    """Return the small matrix with other contents."""
    return Matrix.model_validate(yaml.safe_load(MATRIX) | changes)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (RELEASE, ("large-v3.0", "large", "latest")),
        (replace(RELEASE, version="2.0"), ("large-v2.0",)),
        (replace(RELEASE, version="nightly"), ("large-vnightly",)),
        (replace(RELEASE, version="sglang-0.5.21"), ("large-sglang-0.5.21",)),
        (Cell("large", "3.0", "server", "linux/amd64"), ("large-v3.0-server",)),
        (replace(RELEASE, model="quantized"), ("quantized-v3.0", "quantized")),
        # Its default arch is not the matrix's.
        (Cell("tiny", "3.0", "cpu", "linux/amd64"), ("tiny-v3.0", "tiny")),
    ],
)
def test_short_tags_belong_to_the_default_arch_of_a_model(
    matrix: Matrix, cell: Cell, expected: tuple[str, ...]
) -> None:
    assert moving_tags(matrix, NONE, cell) == possible_tags(matrix, cell) == expected


NATIVE = replace(RELEASE, version="3.0-native")
SHORT = ("large", "latest")


@pytest.fixture(scope="module")
def compiled() -> Matrix:
    """The small matrix with a version that short tags prefer."""
    read = yaml.safe_load(MATRIX)
    versions = read["vllm"] | {NATIVE.version: {"release": "3.0", "compile": {"spark": "graft"}}}
    return changed(vllm=versions, defaults=read["defaults"] | {"tags": NATIVE.version})


def published(*cells: Cell) -> Catalog:
    """Publish an image of each cell, one after the other, under all tags that it may get."""
    catalog = NONE
    for day, cell in enumerate(cells):
        short = SHORT if cell in (RELEASE, NATIVE) else ()
        catalog = promoted(catalog, image(cell.version, cell), day, (cell.model_and_version, *short))
    return catalog


def test_short_tags_are_the_default_version_s_until_the_preferred_one_has_an_image(compiled: Matrix) -> None:
    assert moving_tags(compiled, NONE, RELEASE) == ("large-v3.0", *SHORT)
    assert moving_tags(compiled, NONE, NATIVE) == ("large-v3.0-native", *SHORT), "it takes them when it passed"
    both = published(RELEASE, NATIVE)
    assert moving_tags(compiled, both, NATIVE) == ("large-v3.0-native", *SHORT)
    assert moving_tags(compiled, both, RELEASE) == ("large-v3.0",)
    assert moving_tags(compiled, both, Cell("tiny", "3.0", "cpu", "linux/amd64")) == ("tiny-v3.0", "tiny")
    assert moving_tags(compiled, both, replace(RELEASE, platform="linux/amd64")) == ("large-v3.0", *SHORT)


@pytest.mark.parametrize(
    ("built", "catalog", "owner"),
    [
        ([RELEASE, NATIVE], NONE, NATIVE),
        ([RELEASE], NONE, RELEASE),
        ([RELEASE, NATIVE], "default", RELEASE),
        ([RELEASE, NATIVE], "both", NATIVE),
        ([RELEASE, NATIVE], "rolled back", RELEASE),
        ([RELEASE, NATIVE], "older", NATIVE),
    ],
)
def test_users_are_shown_one_owner_of_short_tags(
    compiled: Matrix, built: list[Cell], catalog: Catalog | str, owner: Cell
) -> None:
    back = partial(rolled_back, published=image("3.0", RELEASE), day=2, left=digest(NATIVE.version), tags=SHORT)
    catalogs = {
        "default": published(RELEASE),
        "both": published(RELEASE, NATIVE),
        "rolled back": back(published(RELEASE, NATIVE)),
        "older": promoted(NONE, image("older", replace(RELEASE, version="2.0")), 0, ("large-v2.0", *SHORT)),
    }
    catalog = catalogs[catalog] if isinstance(catalog, str) else catalog
    for cell in (RELEASE, NATIVE):
        short = SHORT if cell == owner else ()
        assert tags_for_users(compiled, catalog, cell, built) == (cell.model_and_version, *short)


def test_an_image_that_was_rolled_back_leaves_the_short_tags_to_the_default_version(compiled: Matrix) -> None:
    back = rolled_back(published(RELEASE, NATIVE), image("3.0", RELEASE), 2, digest(NATIVE.version), SHORT)
    assert moving_tags(compiled, back, RELEASE) == ("large-v3.0", *SHORT)
    assert digest(NATIVE.version) in back.holds(moving_tags(compiled, back, NATIVE)), "it is refused, not forgotten"
    again = promoted(back, image("mended", NATIVE), 3, ("large-v3.0-native", *SHORT))
    assert moving_tags(compiled, again, RELEASE) == ("large-v3.0",)


def test_the_next_release_takes_the_short_tags_before_it_is_compiled(compiled: Matrix) -> None:
    older = replace(RELEASE, version="2.0-native")
    catalog = promoted(NONE, image("older", older), 0, ("large-v2.0-native", *SHORT))
    assert moving_tags(compiled, catalog, RELEASE) == ("large-v3.0", *SHORT)


def test_a_target_without_a_version_is_what_its_tags_name(compiled: Matrix) -> None:
    def named(target: str, catalog: Catalog) -> Cell:
        return select_one(compiled, target, partial(tagged_version, compiled, catalog))

    both = published(RELEASE, NATIVE)
    assert select_one(compiled, "large") == named("large", NONE) == named("large@3.0", both) == RELEASE
    assert named("large", both) == NATIVE
    assert named("large/server", both).version == "3.0"


def test_two_versions_take_turns_on_short_tags_and_either_may_have_them(compiled: Matrix) -> None:
    refuse_ambiguous(compiled)
    for cell in (RELEASE, NATIVE):
        assert names_image(compiled, "large", cell, KEY)
        assert names_image(compiled, "large-v3.0", cell, KEY) is (cell == RELEASE)


def test_one_tag_names_the_plan_and_nightlies_get_a_dated_one_only_on_the_default_arch(matrix: Matrix) -> None:
    assert tags_of(matrix, NONE, RELEASE, KEY, DAY).fixed == "large-v3.0-spark-0123456789ab"
    assert fixed_tag(RELEASE, Sha256("f" * 64)) != fixed_tag(RELEASE, KEY)
    nightly = replace(RELEASE, version="nightly")
    elsewhere = Cell("large", "nightly", "server", "linux/amd64")
    assert tags_of(matrix, NONE, nightly, KEY, DAY).dated == ("nightly-20261105-large",)
    assert tags_of(matrix, NONE, elsewhere, KEY, DAY).dated == ()
    assert tags_of(matrix, NONE, RELEASE, KEY, DAY).dated == ()
    assert tags_of(matrix, NONE, RELEASE, KEY, DAY, nightly=True).dated == ("nightly-20261105-large",)


@pytest.mark.parametrize(
    ("tag", "day"),
    [
        ("nightly-20261105-gemma4-31b", DAY),
        ("nightly-20261305-gemma4-31b", None),
        ("nightly-gemma4", None),
        ("gemma4-31b", None),
    ],
)
def test_the_day_of_a_nightly_is_read_from_its_tag(tag: str, day: date | None) -> None:
    assert nightly_date(tag) == day


def test_two_names_that_make_the_same_tag_are_refused() -> None:
    refuse_ambiguous(load_matrix(REPOSITORY / "matrix.yaml"))
    with raises("bad-tag", match=r"would both be published as 'a-v3\.0'"):
        refuse_ambiguous(changed(models={"a": MODEL, "a-v3.0": MODEL}, exclude=[]))


@pytest.mark.parametrize("name", ["catalog", "staging-x", "nightly-x", "sha256-x", "wheel-x"])
def test_a_reserved_name_is_refused(name: str) -> None:
    with raises("bad-tag", match="would be published as"):
        refuse_ambiguous(changed(models={"first": MODEL, name: MODEL}, exclude=[]))


def test_a_tag_that_is_too_long_is_refused() -> None:
    model, vllm, arch = ("m" * 60, "v" * 60, "a" * 60)
    long = changed(
        models={model: MODEL}, archs={arch: {"platforms": ["linux/amd64"], "base": "bookworm"}},
        vllm={vllm: {"release": "1.0"}}, exclude=[], defaults={"vllm": vllm, "arch": arch},
    )  # fmt: skip
    with raises("bad-tag", match="do not accept the tag"):
        tags_of(long, NONE, Cell(model, vllm, arch, "linux/amd64"), KEY, DAY)


def test_an_arch_may_require_exactly_the_levels_that_smoke_tests_have() -> None:
    assert SmokeLevel == Level


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        *((tag, True) for tag in ("large", "latest", "large-v3.0", "nightly-20261105-large")),
        (f"staging-{KEY}", True),
        ("large-v3.0-spark-0123456789ab", True),
        *((tag, False) for tag in ("quantized", "large-v2.0", "large-v3.0-server", "nightly-20261105-tiny")),
        *((tag, False) for tag in ("large-v3.0-spark-000000000000", "catalog", f"staging-{'0' * 64}")),
        ("prod", None),
    ],
)
def test_a_tag_names_the_images_of_its_own_cell_only(matrix: Matrix, tag: str, expected: object) -> None:
    assert names_image(matrix, tag, RELEASE, KEY) is expected
    assert names_image(matrix, tag, replace(RELEASE, model="gone"), Sha256("f" * 64)) is not True
