"""Which chips a library was compiled for, and what the policy of an arch makes of it."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from imagefactory.errors.kernels import AuditError, AuditFailedError
from imagefactory.locks.kernels import GpuCode, KernelVerdict, judge
from imagefactory.matrix.matrix import CubinPolicy
from imagefactory.resolve.audit.auditing import refuse_failing
from imagefactory.resolve.audit.cuobjdump import read_kernels
from imagefactory.resolve.audit.libraries import from_file, from_wheel, is_library

GB10 = CubinPolicy(
    accept=["sm_121a", "sm_121f", "sm_121", "sm_120f", "sm_120"], refuse=["sm_120a"], fp4=["vllm/_C*.so"]
)


def verdict(kernels: GpuCode, library: str = "vllm/_C.abi3.so") -> KernelVerdict:
    found = judge(library, kernels, GB10, "12.1")
    assert found is not None
    return found


def test_family_code_of_the_neighbour_runs_natively() -> None:
    found = verdict(GpuCode(cubins={"sm_120": 47, "sm_120f": 35}, fp4=True))
    assert (found.outcome, found.why) == ("native", "sm_120f x35, sm_120 x47")


def test_special_code_of_the_neighbour_alone_fails_even_beside_plain_code() -> None:
    found = verdict(GpuCode(cubins={"sm_120": 32, "sm_120a": 16}, fp4=True))
    assert found.outcome == "fails"
    assert "sm_120a x16" in found.why
    assert "12.1" in found.why


def test_special_code_of_the_neighbour_does_no_harm_beside_code_for_the_family() -> None:
    assert verdict(GpuCode(cubins={"sm_120a": 1, "sm_121a": 1}, fp4=True)).outcome == "native"


def test_fp4_kernels_need_an_a_or_f_target() -> None:
    assert verdict(GpuCode(cubins={"sm_120": 3}, fp4=True)).outcome == "fails"
    assert verdict(GpuCode(cubins={"sm_120": 3}, fp4=False)).outcome == "native"


def test_weight_only_fp4_elsewhere_is_no_fp4_library() -> None:
    assert verdict(GpuCode(cubins={"sm_120": 13}, fp4=True), "vllm/_moe_C.abi3.so").outcome == "native"


def test_ptx_of_an_older_chip_is_compiled_at_first_use() -> None:
    found = verdict(GpuCode(cubins={"sm_80": 1}, ptx={"sm_80": 2, "sm_75": 1}), "vllm/fa2.so")
    assert found.outcome == "jit"
    assert "compute_80" in found.why
    assert found.passes


@pytest.mark.parametrize("ptx", [{"sm_90a": 1}, {"sm_100f": 1}, {"sm_130": 1}])
def test_special_or_newer_ptx_cannot_be_compiled_for_the_chip(ptx: dict[str, int]) -> None:
    found = verdict(GpuCode(cubins={"sm_90a": 1}, ptx=ptx), "vllm/fa3.so")
    assert found.outcome == "other chips"
    assert found.passes


def test_a_library_without_gpu_code_is_not_judged() -> None:
    assert judge("vllm/spinloop.so", GpuCode(), GB10, "12.1") is None


def test_a_failing_library_is_named_with_its_reason() -> None:
    failing = verdict(GpuCode(cubins={"sm_120a": 16}))
    with pytest.raises(AuditFailedError) as caught:
        refuse_failing("0.19.1", [failing])
    assert "vllm/_C.abi3.so" in caught.value.where
    assert "sm_120a" in caught.value.why


def test_nothing_fails_when_everything_runs() -> None:
    refuse_failing("0.32.0", [verdict(GpuCode(cubins={"sm_120f": 1}))])


DUMP = """\
Fatbin elf code:
================
arch = sm_120f
code version = [1,8]

Fatbin elf code:
================
arch = sm_120f
code version = [1,8]

Fatbin ptx code:
================
arch = sm_80
code version = [8,0]
"""


def program(folder: Path, body: str) -> Path:
    path = folder / "cuobjdump"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_the_dump_is_counted_by_kind_and_architecture(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"...nvfp4_gemm...")
    (tmp_path / "dump").write_text(DUMP)
    kernels = read_kernels(library, program(tmp_path, f"cat {tmp_path}/dump"))
    assert kernels == GpuCode(cubins={"sm_120f": 2}, ptx={"sm_80": 1}, fp4=True)


def test_a_library_without_device_code_is_empty_not_broken(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"plain")
    tool = program(tmp_path, "echo 'cuobjdump info    : File does not contain device code'; exit 255")
    assert read_kernels(library, tool) == GpuCode()


def test_a_damaged_library_is_named(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"garbage")
    with pytest.raises(AuditError) as caught:
        read_kernels(library, program(tmp_path, "echo 'not an ELF file' >&2; exit 1"))
    assert str(library) in caught.value.where
    assert "not an ELF file" in caught.value.why


def test_only_libraries_of_audited_packages_are_looked_into(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with ZipFile(wheel, "w") as archive:
        for name in ("vllm/_C.abi3.so", "vllm/a.py", "numpy/core.so", "flashinfer_jit_cache/x/y.so"):
            archive.writestr(name, name)
    with ZipFile(wheel) as archive:
        libraries = list(from_wheel(archive, "0" * 64))
        assert [library.name for library in libraries] == ["vllm/_C.abi3.so", "flashinfer_jit_cache/x/y.so"]
        libraries[0].unpack(tmp_path / "out.so")
    assert (tmp_path / "out.so").read_text() == "vllm/_C.abi3.so"


def test_a_single_file_is_audited_whatever_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "mine.so"
    path.write_bytes(b"x")
    [library] = from_file(path)
    assert library.name == "mine.so"
    assert not is_library("mine.so")
