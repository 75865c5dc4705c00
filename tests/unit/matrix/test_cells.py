"""Cells: what the matrix stands for, and what its rules take out with a reason."""

from __future__ import annotations

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
from tests.fixtures.checkouts import REPOSITORY, Checkout


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return load_matrix(REPOSITORY / "matrix.yaml")


def cell(model: str, vllm: str = "0.32.0", arch: str = "gb10", platform: str = "linux/arm64") -> Cell:
    return Cell(model, vllm, arch, platform)


def test_every_combination_is_either_built_or_excluded_with_a_reason(matrix: Matrix) -> None:
    built, excluded = buildable(matrix), exclusions(matrix)
    assert [*built, *(entry.cell for entry in excluded)] != []
    assert sorted([*built, *(entry.cell for entry in excluded)]) == sorted(all_combinations(matrix))
    assert all(entry.reason for entry in excluded)


@pytest.mark.parametrize(
    ("impossible", "reason"),
    [
        (cell("gemma4-31b", arch="cpu"), "too large"),
        (cell("tiny"), "without a GPU"),
        (cell("qwen3.5-27b-nvfp4", arch="h100", platform="linux/amd64"), "Blackwell"),
        (cell("qwen3-coder-next-nvfp4", "0.19.1"), "0.20"),
        (cell("gpt-oss-120b", "pr-41703"), "Gemma"),
        (cell("tiny", "nightly", "cpu"), "releases only"),
    ],
)
def test_what_cannot_work_is_excluded_and_says_why(matrix: Matrix, impossible: Cell, reason: str) -> None:
    assert reason in (reason_excluded(matrix, impossible) or "")


def test_a_model_is_not_built_before_its_first_release(matrix: Matrix) -> None:
    late = matrix.models["gpt-oss-120b"].model_copy(update={"vllm": ">=0.24"})
    changed = matrix.model_copy(update={"models": {**matrix.models, "gpt-oss-120b": late}})
    assert reason_excluded(changed, cell("gpt-oss-120b", "0.20.2")) == "gpt-oss-120b needs vLLM >=0.24"
    assert reason_excluded(changed, cell("gpt-oss-120b", "nightly")) is None


def test_a_drafter_that_is_too_new_gives_way_to_the_next_one(matrix: Matrix) -> None:
    first, second = matrix.models["gemma4-31b"].drafters
    assert usable_drafters(matrix, cell("gemma4-31b", "0.32.0")) == [first, second]
    assert usable_drafters(matrix, cell("gemma4-31b", "0.24.0")) == [second]
    assert [drafter for drafter, _ in drafter_exclusions(matrix, cell("gemma4-31b", "0.24.0"))] == [first]


def test_one_repository_may_draft_in_two_ways(matrix: Matrix) -> None:
    both = [
        Drafter(repo="a/b", method="dflash", tokens=4, vllm=">=9"),
        Drafter(repo="a/b", method="eagle3", tokens=4),
    ]
    model = matrix.models["gemma4-31b"].model_copy(update={"drafters": both})
    changed = matrix.model_copy(update={"models": {"gemma4-31b": model}})
    assert usable_drafters(changed, cell("gemma4-31b")) == both[1:]


def test_a_required_drafter_excludes_where_an_optional_one_does_not(matrix: Matrix) -> None:
    assert reason_excluded(matrix, cell("gemma4-31b", "0.19.1")) is None
    assert reason_excluded(matrix, cell("qwen3.5-27b-nvfp4", "0.19.1")) is not None


def test_kernels_are_compiled_for_git_references_and_where_the_matrix_says_so(matrix: Matrix) -> None:
    assert intended_kernels(matrix, cell("gemma4-31b")) == "upstream"
    assert intended_kernels(matrix, cell("gemma4-31b", "nightly")) == "compiled"
    assert intended_kernels(matrix, cell("gemma4-31b", "0.19.1")) == "compiled"


def test_a_cell_has_a_name_for_people_and_one_for_files() -> None:
    assert str(cell("tiny", arch="cpu")) == "tiny@0.32.0/cpu"
    assert cell("tiny", arch="cpu").slug == "tiny-v0.32.0-cpu-arm64"


def test_single_packages_can_be_compiled_where_there_is_a_gpu(factory_checkout: Checkout) -> None:
    factory_checkout.edit_matrix(
        '"0.32.0": {release: "0.32.0"}', '"0.32.0": {release: "0.32.0", compile: [FlashInfer_jit_cache]}'
    )
    matrix = load_matrix(factory_checkout.matrix)
    assert compiled_distributions(matrix, cell("gemma4-31b", "0.32.0")) == ("flashinfer-jit-cache",)
    assert intended_kernels(matrix, cell("gemma4-31b", "0.32.0")) == "upstream"
    assert compiled_distributions(matrix, Cell("tiny", "0.32.0", "cpu", "linux/amd64")) == ()


def test_a_version_brings_its_needs_to_archs_with_a_gpu_only(matrix: Matrix) -> None:
    spark = arch_of(matrix, cell("gemma4-31b", "0.19.1"))
    assert "torch==2.10.0+cu130" in spark.also
    assert spark.also[:-1] == matrix.archs["gb10"].also
    assert spark.local_versions == ["cu130"]
    processor = arch_of(matrix, Cell("tiny", "0.19.1", "cpu", "linux/amd64"))
    assert processor == matrix.archs["cpu"]
