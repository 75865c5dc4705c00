"""The options of `./inv compile` become requests, or are refused with the closest names."""

from typing import Any

import pytest

from imagefactory.compile.job import work_out
from imagefactory.compile.request import requests_of
from imagefactory.compile.toolchain import CompileProject
from tests.fixtures.failures import raises

GRAFT = "0.28.0-graft"


@pytest.mark.parametrize(
    ("options", "unknown"),
    [
        ({"vllm": "0.18"}, "vLLM version '0.18'"),
        ({"arch": "toolchain-trixie"}, "arch 'toolchain-trixie'"),
        ({"what": "torch"}, "project to compile 'torch'"),
        ({"without_mods": ["nothing"]}, "mod 'nothing'"),
        ({"sources": ["cutlas=/x"]}, "source 'cutlas'"),
        ({"what": "vllm", "vllm": GRAFT, "only": "_qutlas_C"}, "'_qutlas_C'"),
        ({"what": "vllm", "vllm": "0.28.0", "only": "_qutlass_C"}, "extension of a graft .* '_qutlass_C'"),
        ({"what": "flashinfer", "only": "sampler"}, "'sampler'"),
    ],
)
def test_unknown_name_is_refused(project: CompileProject, options: dict[str, Any], unknown: str) -> None:
    with raises("unknown-name", match=unknown):
        requests_of(project, **options)


def test_graft_replaces_the_extensions_of_its_version_or_those_named(project: CompileProject) -> None:
    [every] = requests_of(project, vllm=GRAFT)
    assert (every.what, every.graft, every.inspects) == ("vllm", True, False)
    assert every.targets == ("_C_stable_libtorch", "_moe_C_stable_libtorch", "_qutlass_C", "_flashkda_C")
    [some] = requests_of(project, vllm=GRAFT, only="_qutlass_C, _C_stable_libtorch")
    assert some.targets == ("_C_stable_libtorch", "_qutlass_C")
    [looked_at] = requests_of(project, vllm=GRAFT, targets="_qutlass_C", what="vllm")
    assert (looked_at.targets, looked_at.graft, looked_at.inspects) == (("_qutlass_C",), False, True)
    [alone] = requests_of(project, vllm="0.32.0-native", arch="h100")
    assert alone.what == "flashinfer", "the published wheel is not compiled"


def test_wheel_of_flashinfer_has_the_modules_of_its_arch_or_those_named(project: CompileProject) -> None:
    [every] = requests_of(project, vllm=GRAFT, what="flashinfer")
    [some] = requests_of(project, vllm=GRAFT, what="flashinfer", only="fp4_gemm_cutlass_sm120,sampling")
    whole, fewer = work_out(project, every), work_out(project, some)
    assert whole.sources.modules == ("sampling", "fp4_gemm_cutlass_sm120", "fused_moe_120")
    assert fewer.sources.modules == ("sampling", "fp4_gemm_cutlass_sm120")
    assert whole.inputs.key != fewer.inputs.key
    vllm, flashinfer = requests_of(project, vllm=GRAFT, what="vllm,flashinfer", only="_qutlass_C,sampling")
    assert (vllm.targets, flashinfer.targets) == (("_qutlass_C",), ("sampling",))
    [alone] = requests_of(project, vllm=GRAFT, what="vllm,flashinfer", only="_qutlass_C")
    assert alone.what == "vllm", "of FlashInfer nothing is named"


def test_whole_version_is_compiled_whole_and_each_request_has_the_sources_of_its_project(
    project: CompileProject,
) -> None:
    vllm, flashinfer = requests_of(project, sources=["cutlass=/c", "flashinfer=/f"], jobs=3)
    assert (vllm.what, vllm.sources, vllm.vllm, vllm.arch) == ("vllm", ("cutlass=/c",), "0.32.0", "gb10")
    assert (vllm.targets, vllm.graft, vllm.inspects) == ((), False, False)
    assert (flashinfer.what, flashinfer.sources, flashinfer.jobs) == ("flashinfer", ("flashinfer=/f",), 3)
    assert (flashinfer.targets, flashinfer.inspects) == ((), False)
