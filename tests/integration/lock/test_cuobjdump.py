"""Tests the audit with NVIDIA's compiler and cuobjdump, both from their locked wheels."""

import subprocess
from pathlib import Path

import pytest

from imagefactory.lock.audit.auditing import audit, cuobjdump, read_kernels, refuse_failing
from imagefactory.project.locks.kernels import GpuCode
from imagefactory.project.project import Project
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.locked_wheels import Nvcc
from tests.fixtures.wheels import make_wheel

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def project() -> Project:
    return Project(REPOSITORY)


def test_dump_tells_targets_apart_that_the_list_does_not(project: Project, nvcc: Nvcc) -> None:
    tool = cuobjdump(project)
    library = nvcc("sm_121a", "sm_120f", "sm_100", "sm_90a", "compute_80")
    assert read_kernels(library, tool) == GpuCode(
        cubins={"sm_100": 1, "sm_120f": 1, "sm_121a": 1, "sm_90a": 1}, ptx={"sm_80": 1}
    )
    # This is why the audit does not read the shorter list.
    listed = subprocess.run([tool, "--list-elf", library], capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == 4
    assert "sm_120f" not in listed


def test_library_without_kernels_is_accepted(project: Project, tmp_path: Path) -> None:
    source, library = tmp_path / "c.c", tmp_path / "c.so"
    source.write_text("int one(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    assert read_kernels(library, cuobjdump(project)) == GpuCode()


def test_local_wheel_is_audited(project: Project, nvcc: Nvcc, tmp_path: Path) -> None:
    library = nvcc("sm_120a")
    wheel = make_wheel(tmp_path, "vllm", tag="cp38-abi3-linux_aarch64", files={"vllm/_C.abi3.so": library.read_bytes()})
    verdicts = audit(project, str(wheel), "gb10").verdicts
    with raises("audit-failed"):
        refuse_failing(wheel.name, verdicts)
    assert [verdict.outcome for verdict in audit(project, str(wheel), "rtx5090").verdicts] == ["native"]
