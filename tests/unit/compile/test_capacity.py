"""How many compilers run at once, and errors about too little memory or disk space."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from imagefactory.compile.capacity import BuildMachine, jobs_for, refuse_full_disk
from imagefactory.compile.settings import Cost
from imagefactory.errors.kernels import NotEnoughRoomError

COST = Cost(job_gb=5, disk_gb=40)


@pytest.mark.parametrize(
    ("cores", "memory", "jobs"), [(2, 24, 2), (64, 24, 4), (20, 119, 20), (1, 500, 1), (8, 5.0, 1)]
)
def test_cores_and_memory_decide_together(cores: int, memory: float, jobs: int) -> None:
    assert jobs_for(BuildMachine(cores, memory), COST) == jobs


def test_more_compilers_than_cores_run_when_asked_for_and_the_memory_suffices() -> None:
    assert jobs_for(BuildMachine(2, 24), COST, asked=4) == 4


def test_more_compilers_than_fit_into_memory_are_refused_with_the_numbers() -> None:
    with pytest.raises(NotEnoughRoomError) as caught:
        jobs_for(BuildMachine(64, 24), COST, asked=8)
    assert "24.0 GB are available; 8 x 5 GB are needed." in caught.value.why
    assert "--jobs 4" in caught.value.fix


def test_a_machine_without_memory_for_one_compiler_is_refused() -> None:
    with pytest.raises(NotEnoughRoomError, match="not enough memory for 1 compiler") as caught:
        jobs_for(BuildMachine(8, 3.5), COST)
    assert "3.5 GB" in caught.value.why


class SmallDisk(BuildMachine):
    def free_gb(self, folder: Path) -> float:  # noqa: ARG002
        return 7.0


def test_a_disk_that_is_too_full_is_refused_with_the_numbers(tmp_path: Path) -> None:
    machine = SmallDisk(2, 24)
    refuse_full_disk(machine, tmp_path, 6.9, "the objects")
    with pytest.raises(NotEnoughRoomError, match="disk space for the objects") as caught:
        refuse_full_disk(machine, tmp_path, 40, "the objects")
    assert caught.value.why == "7.0 GB are free; about 40.0 GB are needed."


def test_the_disk_of_a_folder_is_known_before_the_folder_exists(tmp_path: Path) -> None:
    free = BuildMachine.this().free_gb(tmp_path / "not" / "yet")
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free / 1e9, abs=1)


def test_this_machine_has_some_memory_and_a_core() -> None:
    machine = BuildMachine.this()
    assert machine.cores >= 1
    assert machine.memory_gb > 0
