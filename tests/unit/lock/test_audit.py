"""Tests reading the GPU targets of a library, and judging them by the policy of an arch."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from imagefactory.lock.auditing import from_file, from_wheel, read_kernels, refuse_failing
from imagefactory.project.locks.kernels import GpuCode, KernelVerdict, judge, recorded_audit
from imagefactory.project.matrix import Arch, CubinPolicy
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.fatbins import container, library

GB10 = Arch(
    capability="12.1",
    platforms=["linux/arm64"],
    base="bookworm",
    cubins=CubinPolicy(
        accept=["sm_121a", "sm_121f", "sm_121", "sm_120f", "sm_120"], refuse=["sm_120a"], fp4=["vllm/_C*.so"]
    ),
)
C, MOE, FA = "vllm/_C.abi3.so", "vllm/_moe_C.abi3.so", "vllm/fa3.so"


def verdict(kernels: GpuCode, library: str = C) -> KernelVerdict:
    found = judge(library, kernels, GB10)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("library", "kernels", "outcome", "why"),
    [
        # family code of the neighbour runs
        (C, GpuCode({"sm_120": 47, "sm_120f": 35}, fp4=True), "native", "sm_120f x35, sm_120 x47"),
        # its special code does not load, even beside plain code, but does no harm beside code for the family
        (C, GpuCode({"sm_120": 32, "sm_120a": 16}, fp4=True), "fails", "sm_120a x16 only, which do not load"),
        (C, GpuCode({"sm_120a": 1, "sm_121a": 1}, fp4=True), "native", "sm_121a x1"),
        # FP4 kernels need an a or f target, except in libraries that only unpack FP4 weights
        (C, GpuCode({"sm_120": 3}, fp4=True), "fails", "FP4"),
        (C, GpuCode({"sm_120": 3}, fp4=False), "native", "sm_120 x3"),
        (MOE, GpuCode({"sm_120": 13}, fp4=True), "native", "sm_120 x13"),
        # PTX for an older GPU is compiled at first use; special or newer PTX cannot be
        (FA, GpuCode({"sm_80": 1}, {"sm_80": 2, "sm_75": 1}), "jit", "compute_80"),
        (FA, GpuCode({"sm_90a": 1}, {"sm_90a": 1}), "other chips", "sm_90a"),
        (FA, GpuCode({"sm_90a": 1}, {"sm_100f": 1}), "other chips", "sm_90a, sm_100f"),
        (FA, GpuCode({"sm_90a": 1}, {"sm_130": 1}), "other chips", "sm_90a, sm_130"),
    ],
)
def test_policy_judges_a_library_by_its_gpu_targets(library: str, kernels: GpuCode, outcome: str, why: str) -> None:
    found = verdict(kernels, library)
    assert (found.outcome, found.passes) == (outcome, outcome != "fails")
    assert why in found.why


@pytest.mark.parametrize("arch", ["gb200", "b300", "a100"])
def test_the_locked_wheels_have_code_for_every_chip_of_a_data_centre(arch: str) -> None:
    project = Project(REPOSITORY)
    lock = project.wheel_lock(select_one(project.matrix, f"gemma4-31b@0.32.0/{arch}"))
    found = recorded_audit(lock, project.matrix.archs[arch], project.kernel_lock)
    outcomes = {verdict.library: verdict.outcome for verdict in found.verdicts}
    assert found.result == "passed"
    assert outcomes["vllm/_C_stable_libtorch.abi3.so"] == outcomes["vllm/_moe_C_stable_libtorch.abi3.so"] == "native"
    # FlashAttention 2 is made for 8.0, and for others as PTX.
    assert outcomes["vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"] == ("native" if arch == "a100" else "jit")


def test_module_for_another_python_is_said_to_be_that() -> None:
    library, kernels = "sgl_kernel/infllm_ops.cpython-310-aarch64-linux-gnu.so", GpuCode({"sm_120a": 4})
    other, own = judge(library, kernels, GB10, "3.13"), judge(library, kernels, GB10, "3.10")
    assert other is not None
    assert own is not None
    assert (other.outcome, other.passes, own.outcome) == ("other Python", True, "fails")
    assert "made for 3.10" in other.why


def test_failing_library_is_reported_with_its_reason() -> None:
    assert judge("vllm/spinloop.so", GpuCode(), GB10) is None
    refuse_failing("0.32.0", [verdict(GpuCode(cubins={"sm_120f": 1}))])
    with raises("audit-failed") as caught:
        refuse_failing("0.20.2", [verdict(GpuCode(cubins={"sm_120a": 16}))])
    assert C in caught.value.where
    assert "sm_120a" in caught.value.why


def test_cubins_and_ptx_are_counted_and_an_unreadable_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(library(container("sm_120f", "sm_120f", "compute_80"), b"nvfp4_gemm"))
    assert read_kernels(path) == GpuCode(cubins={"sm_120f": 2}, ptx={"sm_80": 1}, fp4=True)
    path.write_bytes(library(b"no GPU code"))
    assert read_kernels(path) == GpuCode()
    path.write_bytes(library(container("sm_120f", size=7)))
    with raises("not-auditable", match="unreadable") as caught:
        read_kernels(path)
    assert str(path) in caught.value.where


def test_wheel_yields_only_libraries_of_audited_packages_and_a_file_itself(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with ZipFile(wheel, "w") as archive:
        for name in (C, "vllm/a.py", "numpy/core.so", "flashinfer_jit_cache/x/y.so"):
            archive.writestr(name, name)
    with ZipFile(wheel) as archive:
        libraries = list(from_wheel(archive, "0" * 64))
        assert [library.name for library in libraries] == [C, "flashinfer_jit_cache/x/y.so"]
        libraries[0].unpack(tmp_path / "out.so")
    assert (tmp_path / "out.so").read_text() == C
    [library] = from_file(tmp_path / "out.so")
    library.unpack(tmp_path / "copy.so")
    assert (library.name, (tmp_path / "copy.so").read_text()) == ("out.so", C)
