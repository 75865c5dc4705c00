"""The committed records of flags, compared with the wheels that they were read from."""

import pytest

from imagefactory.lock.flags.flag_records import FlagLock, flag_lock, wheels_with_flags
from imagefactory.mods.source_files import ReleaseSource
from imagefactory.project.locks.indexed_files import configured_indexes
from imagefactory.project.project import Project
from tests.fixtures.checkouts import REPOSITORY

PROJECT = Project(REPOSITORY)
WHEELS = wheels_with_flags(PROJECT)


@pytest.mark.network
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == PROJECT.matrix.defaults.vllm else pytest.mark.slow) for name in WHEELS],
)
def test_record_is_what_the_wheel_defines(name: str) -> None:
    recorded = FlagLock.read(FlagLock.path(PROJECT.locks, name))
    source = ReleaseSource(WHEELS[name], configured_indexes(), PROJECT.store)
    found = flag_lock(name, recorded.made_from, source.read)
    assert found.content_checksum() == recorded.integrity
