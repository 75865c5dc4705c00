"""Tests the status of a target."""

from dataclasses import astuple

from imagefactory.project.project import Project, target_status
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory


def test_status_comes_from_the_matrix_and_the_locks(small_factory: SmallFactory) -> None:
    project = small_factory.project
    kernels = project.wheel_lock(CELL).kernels
    found = target_status(project, CELL)
    assert [*found.values()] == [*astuple(CELL), "1", kernels, "yes", "generated"]
    assert target_status(project, SECOND)["revision"] == "unpinned"
    project.wheel_lock_path(CELL).unlink()
    assert target_status(Project(project.root, project.store), CELL)["locked"] == "no"
