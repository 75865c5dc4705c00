"""Tests the check that locks match the matrix."""

import pytest

from imagefactory.compile.toolchain import FlashInferLock, check_all_locks
from imagefactory.errors import FactoryError
from imagefactory.lock.drift import Expected, cells_to_lock, check_locks, expected_locks, wheels_made_from
from imagefactory.project.cells import Cell
from imagefactory.project.matrix import load_matrix
from imagefactory.project.project import Project
from imagefactory.store.digests import sha256_of
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.failures import raises


def drift(checkout: Checkout) -> FactoryError:
    with raises("lock-drift") as failure:
        check_all_locks(Project(checkout.root))
    return failure.value


def test_matching_locks_are_listed(locked_checkout: Checkout) -> None:
    # Neither records of layers nor serving settings concern the locks.
    project = Project(locked_checkout.root)
    project.known_layers.touch()
    locked_checkout.edit_matrix("{dtype: float32}", "{dtype: bfloat16}")
    found = check_all_locks(project)
    assert [str(path.relative_to(locked_checkout.locks)) for path in found] == [
        "2.0/cpu-linux-amd64.toml",
        "2.0/cpu-linux-arm64.toml",
        "2.0/gpu-linux-arm64.toml",
        "bookworm/linux-amd64.toml",
        "bookworm/linux-arm64.toml",
        "kernels.toml",
        "models.toml",
        "sources.toml",
        "tools.toml",
    ]


@pytest.mark.parametrize(
    ("old", "new", "part", "kind"),
    [
        ('    vllm: ">=2"', '    vllm: ">=2.0"', "models.tiny", "locks/models.toml"),
        ('  "2.0": {release: "2.0"}', '  "2.0": {release: "2.0.1"}', "vllm.2.0", "2.0/gpu"),
        ("    without: [torchvision, ", "    without: [", "archs.cpu", "cpu-linux"),
        ("    debian: bookworm\n", "    debian: trixie\n", "bases.bookworm", "bookworm/linux"),
    ],
)
def test_drift_names_the_part_of_the_matrix_and_the_lock(
    locked_checkout: Checkout, old: str, new: str, part: str, kind: str
) -> None:
    locked_checkout.edit_matrix(old, new)
    error = drift(locked_checkout)
    assert f"{part} changed in matrix.yaml" in error.why
    assert kind in error.where


def test_where_else_something_is_left_out_leaves_a_lock_alone() -> None:
    matrix, cell = load_matrix(REPOSITORY / "matrix.yaml"), Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64")

    def made_from(**updates: object) -> object:
        entries = [entry.model_copy(update=updates) for entry in matrix.leave_out]
        return wheels_made_from(matrix.model_copy(update={"leave_out": entries}), cell)["leave_out"]

    assert made_from(archs=["gb10", "another"], vllm="", sglang=None) == made_from(archs=[], vllm="", sglang=None)
    assert made_from(archs=["gb10"], files=["other"]) != made_from(archs=["gb10"])


def test_unneeded_missing_or_copied_lock_is_drift(locked_checkout: Checkout) -> None:
    wheels = locked_checkout.locks / "2.0/gpu-linux-arm64.toml"
    wheels.rename(wheels.with_name("b300-linux-arm64.toml"))
    assert "no longer builds" in drift(locked_checkout).why
    base = locked_checkout.locks / "bookworm"
    (base / "linux-arm64.toml").unlink()
    assert "linux-arm64.toml: is missing" in drift(locked_checkout).why
    (base / "linux-arm64.toml").write_bytes((base / "linux-amd64.toml").read_bytes())
    assert "is a copy of locks/bookworm/linux-amd64.toml" in drift(locked_checkout).why


def test_copied_flashinfer_lock_is_drift(locked_checkout: Checkout) -> None:
    project = Project(locked_checkout.root)
    path = FlashInferLock.path(project.locks, "2.0")
    FlashInferLock(made_from={"vllm.1.0": sha256_of(b"")}).write(path)
    expected = Expected(path, FlashInferLock, {"vllm.2.0": sha256_of(b"")})
    with raises("lock-drift") as failure:
        check_locks(project, [*expected_locks(project), expected])
    assert failure.value.why == "locks/2.0/flashinfer.toml: is a copy of locks/1.0/flashinfer.toml"


def test_a_new_version_without_a_lock_is_drift_and_is_locked_next(locked_checkout: Checkout) -> None:
    locked_checkout.edit_matrix('  "2.0": {release: "2.0"}', '  "2.0": {release: "2.0"}\n  "2.1": {release: "2.1"}')
    assert "locks/2.1/gpu-linux-arm64.toml: is missing" in drift(locked_checkout).why
    project = Project(locked_checkout.root)
    assert {str(cell) for cell in cells_to_lock(project) if cell.version == "2.1"} == {
        "big@2.1/gpu",
        "tiny@2.1/gpu",
    }
