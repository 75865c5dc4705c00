"""Locks, records and audits against the real package index."""

from pathlib import Path

import pytest

from imagefactory.lock.auditing import audit, read_kernels, refuse_failing
from imagefactory.lock.flag_records import FlagLock, flag_lock, wheels_with_flags
from imagefactory.lock.making import make_locks
from imagefactory.mods.source_files import ReleaseSource
from imagefactory.project.locks.indexed_files import configured_indexes
from imagefactory.project.locks.kernels import GpuCode
from imagefactory.project.project import Project
from imagefactory.project.targets import select
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.failures import raises
from tests.fixtures.locked_wheels import Nvcc
from tests.fixtures.wheels import make_wheel

pytestmark = pytest.mark.network
PROJECT = Project(REPOSITORY)
WHEELS = wheels_with_flags(PROJECT)


@pytest.mark.slow
def test_locking_again_with_an_empty_cache_changes_nothing(factory_checkout: Checkout, tmp_path: Path) -> None:
    project = Project(factory_checkout.root, store=Store(tmp_path / "store"))
    path = factory_checkout.locks / "0.32.0" / "gb10-linux-arm64.toml"
    committed = path.read_bytes()
    said: list[str] = []
    # Everything is resolved again, but only named packages may change their version.
    results = list(make_locks(project, select(project.matrix, ["gemma4-31b"]), upgrade=["vllm"], say=said.append))
    assert path in {result.path for result in results}
    assert any(line.startswith("Resolving vLLM 0.32.0") for line in said)
    assert path.read_bytes() == committed
    # Zip directories were read, wheels were not downloaded.
    assert not (tmp_path / "store" / "downloads").exists()
    assert any((tmp_path / "store" / "facts").iterdir())


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == PROJECT.matrix.defaults.vllm else pytest.mark.slow) for name in WHEELS],
)
def test_a_record_of_flags_is_what_the_wheel_defines(name: str) -> None:
    recorded = FlagLock.read(FlagLock.path(PROJECT.locks, name))
    source = ReleaseSource(WHEELS[name], configured_indexes(), PROJECT.store)
    found = flag_lock(name, recorded.made_from, source.read)
    assert found.content_checksum() == recorded.integrity


def test_targets_are_told_apart(nvcc: Nvcc) -> None:
    library = nvcc("sm_121a", "sm_120f", "sm_100", "sm_90a", "compute_80")
    assert read_kernels(library) == GpuCode(
        cubins={"sm_100": 1, "sm_120f": 1, "sm_121a": 1, "sm_90a": 1}, ptx={"sm_80": 1}
    )


def test_local_wheel_is_audited(nvcc: Nvcc, tmp_path: Path) -> None:
    library = nvcc("sm_120a")
    wheel = make_wheel(tmp_path, "vllm", tag="cp38-abi3-linux_aarch64", files={"vllm/_C.abi3.so": library.read_bytes()})
    verdicts = audit(PROJECT, str(wheel), "gb10").verdicts
    with raises("audit-failed"):
        refuse_failing(wheel.name, verdicts)
    assert [verdict.outcome for verdict in audit(PROJECT, str(wheel), "rtx5090").verdicts] == ["native"]
