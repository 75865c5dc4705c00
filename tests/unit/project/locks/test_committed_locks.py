"""Tests the locks of this checkout: they match its matrix, name no host, and record kernels that load."""

from imagefactory.compile.toolchain import check_all_locks
from imagefactory.project.locks.files import WheelLock
from imagefactory.project.locks.kernels import recorded_audit
from imagefactory.project.project import Project, locked_cells
from tests.fixtures.checkouts import REPOSITORY

LOCKS = sorted((REPOSITORY / "locks").glob("**/*.toml"))
WHEEL_LOCKS = sorted((REPOSITORY / "locks").glob("*/*-linux-*.toml"))


def test_committed_locks_match_the_matrix_and_contain_no_url() -> None:
    assert set(check_all_locks(Project(REPOSITORY))) > set(WHEEL_LOCKS)
    assert [path for path in LOCKS if "://" in path.read_text("utf-8")] == []


def test_committed_wheels_are_sorted_and_needed() -> None:
    for path in WHEEL_LOCKS:
        wheels = WheelLock.read(path).wheels
        assert all(wheel.needed_by for wheel in wheels), path
        assert [wheel.name for wheel in wheels] == sorted(wheel.name for wheel in wheels), path


def test_every_locked_image_has_kernels_that_load() -> None:
    project = Project(REPOSITORY)
    audits = {
        cell: recorded_audit(project.wheel_lock(cell), project.matrix.archs[cell.arch], project.kernel_lock)
        for cell in locked_cells(project)
    }
    assert audits
    assert {audit.result for audit in audits.values()} <= {"passed", "not-applicable"}
