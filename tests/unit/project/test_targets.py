"""Tests how targets select cells, and how wrong targets are reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.errors import FactoryError
from imagefactory.project.cells import Cell, buildable
from imagefactory.project.matrix import Matrix
from imagefactory.project.targets import default_target, select, select_one
from tests.fixtures.failures import raises


@pytest.mark.parametrize(
    ("target", "cell"),
    [
        ("large", Cell("large", "3.0", "spark", "linux/arm64")),
        ("large@2.0", Cell("large", "2.0", "spark", "linux/arm64")),
        ("large/server", Cell("large", "3.0", "server", "linux/amd64")),
        ("large@2.0/server", Cell("large", "2.0", "server", "linux/amd64")),
        ("tiny@2.0/cpu/arm64", Cell("tiny", "2.0", "cpu", "linux/arm64")),
    ],
)
def test_defaults_complete_a_target(matrix: Matrix, target: str, cell: Cell) -> None:
    assert select(matrix, [target]) == [cell]


def test_default_target_is_the_first_model_and_one_that_matches_several_is_refused(matrix: Matrix) -> None:
    assert default_target(matrix) == "large"
    assert select(matrix, []) == [select_one(matrix, "")] == select(matrix, ["large"])
    with raises("unknown-name", match=r"matches \d+ images") as refused:
        select_one(matrix, "large@*")
    assert refused.value.why.endswith(" and more.")


@pytest.mark.parametrize(("machine", "platform"), [("aarch64", "linux/arm64"), ("x86_64", "linux/amd64")])
def test_target_without_machine_means_this_computers_platform(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch, machine: str, platform: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert select(matrix, ["tiny"]) == [Cell("tiny", "3.0", "cpu", platform)]


def test_globs_match_several_cells_except_excluded_ones(matrix: Matrix) -> None:
    assert {cell.model for cell in select(matrix, ["*a*"])} == {"large", "quantized"}
    assert {cell.arch for cell in select(matrix, ["large@*/*"])} == {"spark", "server"}
    assert len(select(matrix, ["large", "large@3.0", "larg*"])) == 1, "each once"
    assert select(matrix, ["all"]) == buildable(matrix)


@pytest.mark.parametrize(
    ("target", "suggestion"),
    [
        ("lagre", "large"),
        ("large@2.1", "2.0"),
        ("large@3.0/sprak", "spark"),
        ("tiny/cpu/arm", "arm64"),
        ("zzz", "quantized"),
    ],
)
def test_unknown_name_suggests_the_nearest(matrix: Matrix, target: str, suggestion: str) -> None:
    with raises("unknown-name") as failure:
        select(matrix, [target])
    assert suggestion in failure.value.fix
    assert target in failure.value.where


def test_excluded_combination_and_a_machine_that_no_arch_has_are_refused(matrix: Matrix) -> None:
    with raises("excluded", match="without a GPU"):
        select(matrix, ["tiny/spark"])
    with raises("unknown-name", match="amd64"):
        select(matrix, ["large/sp*/amd64"])


def test_malformed_target_is_refused_with_the_syntax(matrix: Matrix) -> None:
    for target in ("", "@", "a@", "a@b@c", "a/", "a//b", "a/b/c/d", "/spark"):
        with raises("unknown-name", match="MODEL"):
            select(matrix, [target])


@given(target=st.text(st.sampled_from("large@3.0/*?[]!cpu "), max_size=20))
def test_any_text_selects_cells_or_raises_a_factory_error(matrix: Matrix, target: str) -> None:
    try:
        cells = select(matrix, [target])
    except FactoryError:
        return
    assert cells
