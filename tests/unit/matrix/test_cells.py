"""Cells: the combinations of a matrix, and those that its rules exclude with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefactory.matrix.cells import (
    Cell,
    all_combinations,
    arch_of,
    buildable,
    compiled_distributions,
    drafter_exclusions,
    exclusions,
    intended_kernels,
    reason_excluded,
    usable_drafters,
)
from imagefactory.matrix.matrix import Drafter, Matrix, load_matrix
from tests.fixtures.small_matrix import MATRIX


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    path = tmp_path_factory.mktemp("cells") / "matrix.yaml"
    path.write_text(MATRIX, "utf-8")
    return load_matrix(path)


def cell(model: str, vllm: str = "3.0", arch: str = "spark", platform: str = "linux/arm64") -> Cell:
    return Cell(model, vllm, arch, platform)


def test_every_combination_is_either_built_or_excluded_with_a_reason(matrix: Matrix) -> None:
    built, excluded = buildable(matrix), exclusions(matrix)
    assert [*built, *(entry.cell for entry in excluded)] != []
    assert sorted([*built, *(entry.cell for entry in excluded)]) == sorted(all_combinations(matrix))
    assert all(entry.reason for entry in excluded)


@pytest.mark.parametrize(
    ("impossible", "reason"),
    [
        (cell("large", arch="cpu"), "too large"),
        (cell("tiny"), "without a GPU"),
        (cell("quantized", arch="server", platform="linux/amd64"), "Blackwell"),
        (cell("quantized", "1.0"), "quantized needs vLLM >=1.5"),
        (cell("quantized", "2.0"), "somebody/eagle needs vLLM >=2.5"),
        (cell("tiny", "nightly", "cpu"), "releases only"),
    ],
)
def test_what_cannot_work_is_excluded_and_says_why(matrix: Matrix, impossible: Cell, reason: str) -> None:
    assert reason in (reason_excluded(matrix, impossible) or "")


def test_a_model_is_not_built_before_its_first_release(matrix: Matrix) -> None:
    late = matrix.models["large"].model_copy(update={"vllm": ">=2.5"})
    changed = matrix.model_copy(update={"models": {**matrix.models, "large": late}})
    assert reason_excluded(changed, cell("large", "2.0")) == "large needs vLLM >=2.5"
    assert reason_excluded(changed, cell("large", "nightly")) is None


def test_a_drafter_that_is_too_new_gives_way_to_the_next_one(matrix: Matrix) -> None:
    first, second = matrix.models["large"].drafters
    assert usable_drafters(matrix, cell("large", "3.0")) == [first, second]
    assert usable_drafters(matrix, cell("large", "2.0")) == [second]
    assert [drafter for drafter, _ in drafter_exclusions(matrix, cell("large", "2.0"))] == [first]


def test_one_repository_may_draft_in_two_ways(matrix: Matrix) -> None:
    both = [
        Drafter(repo="a/b", method="dflash", tokens=4, vllm=">=9"),
        Drafter(repo="a/b", method="eagle3", tokens=4),
    ]
    model = matrix.models["large"].model_copy(update={"drafters": both})
    changed = matrix.model_copy(update={"models": {"large": model}})
    assert usable_drafters(changed, cell("large")) == both[1:]


def test_a_required_drafter_excludes_where_an_optional_one_does_not(matrix: Matrix) -> None:
    assert reason_excluded(matrix, cell("large", "2.0")) is None
    assert reason_excluded(matrix, cell("quantized", "2.0")) is not None


def test_kernels_are_compiled_for_git_references_and_where_the_matrix_says_so(matrix: Matrix) -> None:
    assert intended_kernels(matrix, cell("large")) == "upstream"
    assert intended_kernels(matrix, cell("large", "nightly")) == "compiled"
    assert intended_kernels(matrix, cell("large", "1.0")) == "compiled"


def test_a_cell_has_a_name_for_people_and_one_for_files() -> None:
    assert str(cell("tiny", arch="cpu")) == "tiny@3.0/cpu"
    assert cell("tiny", arch="cpu").slug == "tiny-v3.0-cpu-arm64"


def test_single_packages_can_be_compiled_where_there_is_a_gpu(tmp_path: Path) -> None:
    named = MATRIX.replace('{release: "3.0"}', '{release: "3.0", compile: [FlashInfer_jit_cache]}')
    (tmp_path / "matrix.yaml").write_text(named, "utf-8")
    matrix = load_matrix(tmp_path / "matrix.yaml")
    assert compiled_distributions(matrix, cell("large", "3.0")) == ("flashinfer-jit-cache",)
    assert intended_kernels(matrix, cell("large", "3.0")) == "upstream"
    assert compiled_distributions(matrix, Cell("tiny", "3.0", "cpu", "linux/amd64")) == ()


def test_a_version_brings_its_needs_to_archs_with_a_gpu_only(matrix: Matrix) -> None:
    spark = arch_of(matrix, cell("large", "1.0"))
    assert "torch==1.0+cu130" in spark.also
    assert spark.also[:-1] == matrix.archs["spark"].also
    assert spark.local_versions == ["cu130"]
    processor = arch_of(matrix, Cell("tiny", "1.0", "cpu", "linux/amd64"))
    assert processor == matrix.archs["cpu"]
