"""Tags: which cell has which, and which names are refused."""

from __future__ import annotations

import json
from datetime import date

import pytest

from imagefactory.errors.publishing import TagNameError
from imagefactory.matrix.cells import Cell
from imagefactory.matrix.matrix import Matrix, SmokeLevel, load_matrix
from imagefactory.publish.tags import fixed_tag, moving_tags, nightly_date, refuse_ambiguous, tags_of
from imagefactory.smoke.record import Level
from imagefactory.store.digests import Sha256
from tests.fixtures.checkouts import REPOSITORY

KEY = Sha256("0123456789abcdef" * 4)
DAY = date(2026, 11, 5)


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return load_matrix(REPOSITORY / "matrix.yaml")


def changed(matrix: Matrix, **changes: object) -> Matrix:
    """Return the matrix other contents, checked."""
    return Matrix.model_validate(json.loads(matrix.model_dump_json(exclude_unset=True)) | changes)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64"), ("gemma4-31b-v0.32.0", "gemma4-31b", "latest")),
        (Cell("gemma4-31b", "0.28.0", "gb10", "linux/arm64"), ("gemma4-31b-v0.28.0",)),
        (Cell("gemma4-31b", "0.32.0", "rtx5090", "linux/amd64"), ("gemma4-31b-v0.32.0-rtx5090",)),
        (Cell("gpt-oss-120b", "0.32.0", "gb10", "linux/arm64"), ("gpt-oss-120b-v0.32.0", "gpt-oss-120b")),
        # Its home is another arch than the matrix's.
        (Cell("tiny", "0.32.0", "cpu", "linux/amd64"), ("tiny-v0.32.0", "tiny")),
        (Cell("gemma4-31b", "nightly", "gb10", "linux/arm64"), ("gemma4-31b-vnightly",)),
    ],
)
def test_short_tags_belong_to_the_arch_a_model_is_at_home_on(
    matrix: Matrix, cell: Cell, expected: tuple[str, ...]
) -> None:
    assert moving_tags(matrix, cell) == expected


def test_the_tag_that_never_moves_names_model_version_arch_and_plan(matrix: Matrix) -> None:
    cell = Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64")
    assert tags_of(matrix, cell, KEY, DAY).fixed == "gemma4-31b-v0.32.0-gb10-0123456789ab"
    assert fixed_tag(cell, Sha256("f" * 64)) != fixed_tag(cell, KEY)


def test_nightlies_are_dated_and_only_at_home(matrix: Matrix) -> None:
    nightly = Cell("gemma4-31b", "nightly", "gb10", "linux/arm64")
    release = Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64")
    elsewhere = Cell("gemma4-31b", "nightly", "rtx5090", "linux/amd64")
    assert tags_of(matrix, nightly, KEY, DAY).dated == ("nightly-20261105-gemma4-31b",)
    assert tags_of(matrix, elsewhere, KEY, DAY).dated == ()
    assert tags_of(matrix, release, KEY, DAY).dated == ()
    assert tags_of(matrix, release, KEY, DAY, nightly=True).dated == ("nightly-20261105-gemma4-31b",)


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


def test_names_that_run_together_to_one_tag_are_refused(matrix: Matrix) -> None:
    twin = {"repo": "a/b", "vllm": ">=0", "weights": "bf16"}
    models = {"a": twin, "a-v0.32.0": twin}
    with pytest.raises(TagNameError, match=r"would both be published as 'a-v0\.32\.0'"):
        refuse_ambiguous(changed(matrix, models=models, exclude=[]))


@pytest.mark.parametrize("name", ["catalog", "staging-x", "nightly-x", "sha256-x"])
def test_names_that_the_factory_uses_itself_are_refused(matrix: Matrix, name: str) -> None:
    models = {"first": {"repo": "a/b", "vllm": ">=0", "weights": "bf16"}}
    models[name] = models["first"]
    with pytest.raises(TagNameError, match="would be published as"):
        refuse_ambiguous(changed(matrix, models=models, exclude=[]))


def test_a_tag_that_is_too_long_is_refused(matrix: Matrix) -> None:
    model = {"repo": "a/b", "vllm": ">=0", "weights": "bf16"}
    arch = {"platforms": ["linux/amd64"], "base": "bookworm"}
    version = {"release": "1.0"}
    long = changed(
        matrix, models={"m" * 60: model}, archs={"a" * 60: arch}, vllm={"v" * 60: version}, exclude=[],
        defaults={"vllm": "v" * 60, "arch": "a" * 60},
    )  # fmt: skip
    with pytest.raises(TagNameError, match="do not accept the tag"):
        tags_of(long, Cell("m" * 60, "v" * 60, "a" * 60, "linux/amd64"), KEY, DAY)


def test_the_repositorys_own_matrix_has_no_ambiguous_tags(matrix: Matrix) -> None:
    refuse_ambiguous(matrix)


def test_an_arch_may_require_exactly_the_levels_that_smoke_tests_have() -> None:
    assert SmokeLevel == Level
