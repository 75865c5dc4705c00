"""What matrix.yaml leaves out: whole distributions with what only they require, and files of others."""

from pathlib import Path

import pytest

from imagefactory.compile.toolchain import check_all_locks
from imagefactory.errors import Location
from imagefactory.lock.drift import expected_locks
from imagefactory.lock.wheel_contents import ReadWheel, WheelContents, leave_out
from imagefactory.project.bases import LeaveOut
from imagefactory.project.cells import leave_out_of
from imagefactory.project.locks.files import LeftOutFiles, LeftOutWheel, WheelLock
from imagefactory.project.matrix import load_matrix
from imagefactory.project.project import Project
from imagefactory.store.digests import sha256_of
from tests.fixtures.checkouts import Checkout
from tests.fixtures.failures import raises
from tests.fixtures.lock_files import wheel_entry
from tests.fixtures.small_factory import CELL, MATRIX

SITE = "lib/python3.11/site-packages"
WHY = "nobody opens it"


def wheel(name: str, *files: str, needed_by: tuple[str, ...] = ("vllm",)) -> ReadWheel:
    paths = {path if path.startswith("bin/") else f"{SITE}/{path}": "0000abcd:100" for path in files}
    paths[f"{SITE}/{name}-1.0.dist-info/METADATA"] = "0000abcd:7"
    unpacked = 100 * len(files) + 7
    locked = wheel_entry(f"{name}-1.0-py3-none-any.whl", name.encode(), unpacked)
    locked = locked.model_copy(update={"needed_by": needed_by})
    return locked, WheelContents(size=50, unpacked=unpacked, paths=paths)


SHARED = ("shared.py", "lib/libshared.so.1", "lib/libsharedMg.so.1", "bin/shared")
FOUND = [
    wheel("vllm", "vllm/a.py", needed_by=("matrix.yaml",)),
    wheel("cu12", "dsl/cu12.so"),
    wheel("cu13", "dsl/cu13.so"),
    wheel("only", "only.py", needed_by=("cu12",)),
    wheel("deeper", "deeper.py", needed_by=("cu12", "only")),
    wheel("shared", *SHARED, needed_by=("cu12", "cu13")),
]


def entry(distribution: str, **values: object) -> LeaveOut:
    return LeaveOut.model_validate({"distribution": distribution, "reason": WHY, **values})


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    """A matrix whose first entry leaves out cu12, and whose second names files of `shared` that do not exist."""
    path = tmp_path / "matrix.yaml"
    path.write_text(
        f"{MATRIX}leave_out:\n"
        f"  - distribution: cu12\n    reason: {WHY}\n"
        f"  - distribution: shared\n    files:\n      - bin/shared\n      - lib/*.a\n    reason: {WHY}\n"
        f"  - distribution: vllm\n    reason: {WHY}\n"
    )
    return path


def test_left_distribution_takes_along_what_nothing_else_requires(matrix: Path) -> None:
    _, left = leave_out(FOUND, [entry("cu12", beside="cu14")], matrix)
    assert left == (), "its replacement is not installed"
    kept, left = leave_out(FOUND, [entry("cu12", beside="cu13")], matrix)
    assert [one.name for one, _ in kept] == ["vllm", "cu13", "shared"]
    assert {one.name: one.reason for one in left} == {
        "cu12": WHY,
        "deeper": "only cu12 and only need it",
        "only": "only cu12 needs it",
    }
    assert left[0].sha256 == sha256_of(b"cu12")


def test_files_are_left_out_of_a_wheel_but_never_its_metadata(matrix: Path) -> None:
    files = ["lib/*Mg.so.*", "bin/shared", "shared*"]
    kept, left = leave_out(FOUND, [entry("shared", files=files), entry("absent", files=["a/*"])], matrix)
    assert left == ()
    [(shared, contents)] = [item for item in kept if item[0].name == "shared"]
    gone = ("bin/shared", f"{SITE}/lib/libsharedMg.so.1", f"{SITE}/shared.py")
    assert shared.left_out == (LeftOutFiles(reason=WHY, unpacked=300, paths=gone),)
    assert shared.not_installed == gone
    assert shared.installed_size == shared.unpacked - 300
    assert contents.paths.keys() == {f"{SITE}/lib/libshared.so.1", f"{SITE}/shared-1.0.dist-info/METADATA"}


def test_what_cannot_be_left_out_is_an_error_with_its_line(matrix: Path) -> None:
    entries = load_matrix(matrix).leave_out
    with raises("bad-leave-out", match=r"shared-1.0-py3-none-any.whl has no file lib/\*\.a") as caught:
        leave_out(FOUND, entries[:2], matrix)
    line = matrix.read_text().splitlines().index("      - lib/*.a") + 1
    assert caught.value.where == str(Location(file="matrix.yaml", line=line))
    with raises("bad-leave-out", match="yaml names it"):
        leave_out(FOUND, entries[2:], matrix)


def test_entry_is_limited_to_archs_and_versions(matrix: Path) -> None:
    plain = load_matrix(matrix)
    for limits, applies in (({"archs": ["cpu"]}, 1), ({"archs": ["gb10"]}, 0), ({"vllm": "<1.0"}, 0)):
        limited = plain.model_copy(update={"leave_out": [entry("cu12", **limits)]})
        assert len(leave_out_of(limited, CELL)) == applies, limits


LOCK = "2.0/gpu-linux-arm64.toml"
REASON = "the second copy of the first"


def declare(checkout: Checkout, distribution: str) -> None:
    text = f"leave_out:\n  - distribution: {distribution}\n    archs: [gpu]\n    reason: {REASON}\n"
    checkout.matrix.write_text(checkout.matrix.read_text() + text)


@pytest.mark.parametrize(("named", "fits"), [("left", True), ("lost", False)])
def test_entry_that_no_lock_follows_is_an_error_with_its_line(
    locked_checkout: Checkout, named: str, *, fits: bool
) -> None:
    declare(locked_checkout, named)
    path = locked_checkout.locks / LOCK
    lock = WheelLock.read(path)
    gone = LeftOutWheel(**{**dict(lock.wheels[0]), "name": "left"}, reason=REASON)
    with raises("lock-drift") as drift:
        check_all_locks(Project(locked_checkout.root))
    assert drift.value.why == f"locks/{LOCK}: leave_out is new in matrix.yaml", "on its archs only"
    expected = expected_locks(Project(locked_checkout.root))
    made_from = next(one.made_from for one in expected if one.path == path)
    lock.model_copy(update={"left_out": (gone,), "made_from": made_from}).write(path)
    if fits:
        check_all_locks(Project(locked_checkout.root))
        return
    with raises("bad-leave-out", match="lost cannot be left out") as caught:
        check_all_locks(Project(locked_checkout.root))
    line = locked_checkout.matrix.read_text().splitlines().index("  - distribution: lost") + 1
    assert caught.value.where == str(Location(file="matrix.yaml", line=line))
