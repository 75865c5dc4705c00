"""Targets: how cells are named, and what a wrong name is answered with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.errors import FactoryError
from imagefactory.errors.matrix import ExcludedCellError, UnknownNameError
from imagefactory.matrix.cells import Cell, buildable
from imagefactory.matrix.matrix import Matrix, load_matrix
from imagefactory.matrix.targets import default_target, select, select_one
from tests.fixtures.checkouts import REPOSITORY

MATRIX = load_matrix(REPOSITORY / "matrix.yaml")


@pytest.fixture
def matrix() -> Matrix:
    return MATRIX


def test_the_defaults_fill_in_what_is_left_out(matrix: Matrix) -> None:
    assert select(matrix, ["gemma4-31b"]) == [Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64")]
    assert select(matrix, ["gemma4-31b@0.28.0"]) == [Cell("gemma4-31b", "0.28.0", "gb10", "linux/arm64")]
    assert select(matrix, ["gemma4-31b/h100"]) == [Cell("gemma4-31b", "0.32.0", "h100", "linux/amd64")]
    assert select(matrix, ["gemma4-31b@0.28.0/rtx5090"]) == [
        Cell("gemma4-31b", "0.28.0", "rtx5090", "linux/amd64")
    ]


def test_without_a_target_the_first_model_of_the_matrix_is_meant(matrix: Matrix) -> None:
    assert default_target(matrix) == "gemma4-31b"
    assert select(matrix, []) == [select_one(matrix, "")] == select(matrix, ["gemma4-31b"])


def test_a_target_that_matches_several_images_is_refused_where_one_is_needed(matrix: Matrix) -> None:
    with pytest.raises(UnknownNameError, match=r"matches \d+ images") as refused:
        select_one(matrix, "qwen*")
    assert refused.value.why.endswith(" and more.")


def test_a_model_may_have_an_arch_of_its_own(matrix: Matrix) -> None:
    assert {cell.arch for cell in select(matrix, ["tiny"])} == {"cpu"}


@pytest.mark.parametrize(("machine", "platform"), [("aarch64", "linux/arm64"), ("x86_64", "linux/amd64")])
def test_of_two_platforms_the_one_of_this_computer_is_meant(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch, machine: str, platform: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert [cell.platform for cell in select(matrix, ["tiny"])] == [platform]
    assert [cell.platform for cell in select(matrix, ["tiny@0.32.0/cpu/arm64"])] == ["linux/arm64"]


def test_globs_name_several_and_leave_out_what_is_excluded(matrix: Matrix) -> None:
    assert {cell.model for cell in select(matrix, ["qwen*"])} == {
        "qwen3.5-27b-nvfp4",
        "qwen3.5-27b-nvfp4-tq",
        "qwen3.5-35b-a3b-int4",
        "qwen3-coder-next-nvfp4",
    }
    assert {cell.arch for cell in select(matrix, ["qwen3.5-27b-nvfp4@*/*"])} == {"gb10", "rtx5090", "b200"}


def test_all_is_everything_that_can_be_built_in_the_order_of_the_matrix(matrix: Matrix) -> None:
    assert select(matrix, ["all"]) == buildable(matrix)


def test_naming_a_cell_twice_gives_it_once(matrix: Matrix) -> None:
    assert len(select(matrix, ["gemma4-31b", "gemma4-31b@0.32.0", "gemma4-3*"])) == 1


@pytest.mark.parametrize(
    ("target", "suggestion"),
    [
        ("gema4-31b", "gemma4-31b"),
        ("gemma4-31b@0.18", "0.19.1"),
        ("gemma4-31b@0.32.0/gb01", "gb10"),
        ("tiny/cpu/arm", "arm64"),
        ("zzz", "gpt-oss-120b"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(matrix: Matrix, target: str, suggestion: str) -> None:
    with pytest.raises(UnknownNameError) as failure:
        select(matrix, [target])
    assert suggestion in failure.value.fix
    assert target in failure.value.where


def test_an_excluded_combination_says_why(matrix: Matrix) -> None:
    with pytest.raises(ExcludedCellError, match="without a GPU"):
        select(matrix, ["tiny/gb10"])


def test_a_machine_that_no_matching_arch_has_is_an_unknown_name(matrix: Matrix) -> None:
    with pytest.raises(UnknownNameError, match="amd64"):
        select(matrix, ["gemma4-31b/gb*/amd64"])


@pytest.mark.parametrize("target", ["", "@", "a@", "a@b@c", "a/", "a//b", "a/b/c/d", "/gb10"])
def test_a_target_with_empty_or_too_many_parts_is_explained(matrix: Matrix, target: str) -> None:
    with pytest.raises(UnknownNameError, match="MODEL"):
        select(matrix, [target])


@given(st.text(st.sampled_from("gemma4-31b@0.28/*?[]!cpu "), max_size=20))
def test_any_text_gives_cells_or_an_error_with_a_remedy(target: str) -> None:
    try:
        cells = select(MATRIX, [target])
    except FactoryError:
        return
    assert cells
