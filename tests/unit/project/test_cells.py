"""Tests which combinations of a matrix are cells, and why others are excluded."""

import pytest

from imagefactory.project.cells import (
    Cell,
    all_combinations,
    buildable,
    compiled_distributions,
    drafter_exclusions,
    exclusions,
    first_of_release,
    intended_kernels,
    reason_excluded,
    usable_drafters,
)
from imagefactory.project.matrix import Matrix, load_matrix
from imagefactory.project.served_model import Drafter
from tests.fixtures.checkouts import Checkout


def cell(model: str, vllm: str = "3.0", arch: str = "spark", platform: str = "linux/arm64") -> Cell:
    return Cell(model, vllm, arch, platform)


def test_every_combination_is_built_or_excluded_with_a_reason(matrix: Matrix) -> None:
    built, excluded = buildable(matrix), exclusions(matrix)
    assert built
    assert excluded
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
def test_impossible_combination_is_excluded_with_its_reason(matrix: Matrix, impossible: Cell, reason: str) -> None:
    assert reason in (reason_excluded(matrix, impossible) or "")


def test_a_model_for_two_sparks_is_built_for_them_alone(matrix: Matrix) -> None:
    pair = matrix.models["large"].model_copy(update={"sparks": 2})
    paired = matrix.model_copy(update={"models": {**matrix.models, "large": pair}})
    elsewhere = cell("large", arch="server", platform="linux/amd64")
    assert reason_excluded(matrix, elsewhere) is None
    assert reason_excluded(paired, elsewhere) == "large is described for two DGX Sparks only"
    assert reason_excluded(paired, cell("large")) is None


def test_drafter_that_is_too_new_is_skipped(matrix: Matrix) -> None:
    first, second = matrix.models["large"].drafters
    assert usable_drafters(matrix, cell("large", "3.0")) == [first, second]
    assert usable_drafters(matrix, cell("large", "2.0")) == [second]
    assert reason_excluded(matrix, cell("large", "2.0")) is None, "its drafters are optional"
    assert [drafter for drafter, _ in drafter_exclusions(matrix, cell("large", "2.0"))] == [first]


def test_drafters_of_one_repository_are_told_apart_by_method(matrix: Matrix) -> None:
    new = Drafter(repo="a/b", method="dflash", tokens=4, vllm=">=9")
    both = [new, Drafter(repo="a/b", method="eagle3", tokens=4)]
    model = matrix.models["large"].model_copy(update={"drafters": both})
    changed = matrix.model_copy(update={"models": {"large": model}})
    assert usable_drafters(changed, cell("large")) == both[1:]


def test_choice_of_kernels_is_made_per_arch(small_matrix: Checkout) -> None:
    small_matrix.edit_matrix(
        '  "3.0": {release: "3.0"}\n',
        '  "3.0": {release: "3.0"}\n'
        '  3.0-own: {release: "3.0", compile: {spark: [graft, flashinfer-jit-cache], server: whole}}\n',
    )
    small_matrix.edit_matrix('"2.0": {release: "2.0"', '"2.0": {release: "2.0", compile: [FlashInfer_jit_cache]')
    matrix = load_matrix(small_matrix.matrix)
    single = cell("large", "2.0")
    assert compiled_distributions(matrix, single) == ("flashinfer-jit-cache",)
    assert intended_kernels(matrix, single) == "upstream"
    graft, whole = cell("large", "3.0-own"), cell("large", "3.0-own", "server", "linux/amd64")
    assert intended_kernels(matrix, graft) == "graft"
    assert compiled_distributions(matrix, graft) == ("vllm", "flashinfer-jit-cache")
    assert intended_kernels(matrix, whole) == "compiled"
    assert compiled_distributions(matrix, whole) == ("vllm",)
    assert intended_kernels(matrix, cell("tiny", "3.0-own", "cpu")) == "upstream"
    assert intended_kernels(matrix, cell("large", "nightly")) == "compiled", "a git reference"
    assert reason_excluded(matrix, graft) is None
    same = reason_excluded(matrix, cell("tiny", "3.0-own", "cpu"))
    assert same == "nothing is compiled for cpu, which makes it the same as vLLM 3.0"


def test_versions_of_one_release_share_sources_and_a_git_reference_has_its_own(small_matrix: Checkout) -> None:
    small_matrix.edit_matrix(
        '  "3.0": {release: "3.0"}\n', '  "3.0": {release: "3.0"}\n  same: {release: "3.0", compile: whole}\n'
    )
    matrix = load_matrix(small_matrix.matrix)
    shared = [first_of_release(matrix, name) for name in ("3.0", "same", "nightly")]
    assert shared == ["3.0", "3.0", "nightly"]
