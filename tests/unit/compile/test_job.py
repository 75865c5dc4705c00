"""The options of `./inv compile` become requests and jobs; what no compiler makes comes from the published wheel."""

from pathlib import Path
from typing import Any, cast

import pytest

from imagefactory.compile import job
from imagefactory.compile.compiling import _order
from imagefactory.compile.job import Job, Request, requests_of, work_out
from imagefactory.compile.source_tree import carry
from imagefactory.compile.toolchain import CompileProject
from tests.fixtures.failures import raises
from tests.fixtures.platforms import MACHINE, PLATFORMS
from tests.fixtures.wheels import make_wheel

GRAFT = "0.28.0-graft"
RUST = ("vllm/vllm-rs", "vllm/_rust_*.so")


@pytest.mark.parametrize(
    ("options", "unknown"),
    [
        ({"vllm": "0.18"}, "vLLM version '0.18'"),
        ({"arch": "toolchain-trixie"}, "arch with a GPU 'toolchain-trixie'"),
        ({"arch": "cpu"}, "arch with a GPU 'cpu'"),
        ({"what": "torch"}, "project to compile 'torch'"),
        ({"without_mods": ["nothing"]}, "mod 'nothing'"),
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
    assert (every.what, every.graft) == ("vllm", True)
    assert every.targets == ("_C_stable_libtorch", "_moe_C_stable_libtorch", "_qutlass_C", "_flashkda_C")
    [some] = requests_of(project, vllm=GRAFT, only="_qutlass_C, _C_stable_libtorch")
    assert some.targets == ("_C_stable_libtorch", "_qutlass_C")
    [alone] = requests_of(project, vllm="0.32.0-native", arch="h100")
    assert alone.what == "flashinfer", "the published wheel is not compiled"


def test_wheel_of_flashinfer_has_the_modules_of_its_arch_or_those_named(project: CompileProject) -> None:
    [every] = requests_of(project, vllm=GRAFT, what="flashinfer")
    [some] = requests_of(project, vllm=GRAFT, what="flashinfer", only="fp4_gemm_cutlass_sm120,sampling")
    whole, fewer = work_out(project, every), work_out(project, some)
    assert whole.modules == ("sampling", "fp4_gemm_cutlass_sm120", "fused_moe_120")
    assert fewer.modules == ("sampling", "fp4_gemm_cutlass_sm120")
    assert whole.inputs.key != fewer.inputs.key
    vllm, flashinfer = requests_of(project, vllm=GRAFT, what="vllm,flashinfer", only="_qutlass_C,sampling")
    assert (vllm.targets, flashinfer.targets) == (("_qutlass_C",), ("sampling",))
    [alone] = requests_of(project, vllm=GRAFT, what="vllm,flashinfer", only="_qutlass_C")
    assert alone.what == "vllm", "of FlashInfer nothing is named"


def test_whole_version_is_compiled_whole(project: CompileProject) -> None:
    vllm, flashinfer = requests_of(project, jobs=3)
    assert (vllm.what, vllm.vllm, vllm.arch) == ("vllm", "0.32.0", "gb10")
    assert (vllm.targets, vllm.graft) == ((), False)
    assert (flashinfer.what, flashinfer.jobs) == ("flashinfer", 3)


def found(project: CompileProject, vllm: str, platform: str, targets: tuple[str, ...] = ()) -> Job:
    """Work out a compile of vLLM, with whatever compilers are pinned."""
    request = Request(what="vllm", vllm=vllm, arch="gb10", targets=targets)
    pinned = Request(what="vllm", vllm="0.32.0", arch="gb10")
    return job._vllm(project, request, platform, job._toolchain(project, pinned, f"linux/{MACHINE}"))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_programs_in_rust_come_from_the_published_wheel_of_the_platform(project: CompileProject, platform: str) -> None:
    sources = found(project, "0.32.0", platform)
    machine = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}[platform]
    assert sources.carried_from is not None
    assert sources.carried_from.file == f"vllm-0.32.0-cp38-abi3-manylinux_2_28_{machine}.whl"
    assert sources.carried == RUST


def test_key_covers_the_published_wheel_and_cmake_is_told_where_sources_are(project: CompileProject) -> None:
    made = work_out(project, Request(what="vllm", vllm="0.32.0", arch="gb10"))
    assert made.carried_from is not None
    assert made.inputs.platform.endswith(MACHINE)
    assert made.inputs.sources["published"] == f"wheel:{made.carried_from.sha256}"
    option = "-DFETCHCONTENT_SOURCE_DIR_VLLM-FLASH-ATTN=/factory/src/flash-attention"
    assert option in cast("list[str]", _order(made, 1)["options"])


def test_single_targets_and_releases_without_rust_take_nothing_and_one_without_a_wheel_is_refused(
    project: CompileProject,
) -> None:
    assert found(project, "0.32.0", "linux/arm64", ("_qutlass_C",)).carried == ()
    assert found(project, "0.20.2", "linux/arm64").carried == ()
    with raises("no-lock", match=r"0\.28\.0 for linux/amd64 is not locked") as caught:
        found(project, "0.28.0", "linux/amd64")
    assert "./inv lock" in caught.value.fix


def test_git_reference_lacks_them(project: CompileProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefactory.compile.job.resolve", lambda source: source)
    sources = found(project, "nightly", "linux/arm64")
    assert (sources.carried, sources.carried_from) == (RUST, None)


def test_files_are_copied_as_programs_and_a_wheel_without_them_is_refused(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "vllm/vllm-rs": b"program",
        "vllm/_rust_a.abi3.so": b"a",
        "vllm/_C.so": b"c",
    }
    carry(RUST, make_wheel(tmp_path, "vllm", "1.0", files=files), tmp_path / "src")
    assert sorted(path.name for path in (tmp_path / "src/vllm").iterdir()) == ["_rust_a.abi3.so", "vllm-rs"]
    assert (tmp_path / "src/vllm/vllm-rs").read_bytes() == b"program"
    assert (tmp_path / "src/vllm/vllm-rs").stat().st_mode & 0o111
    wheel = make_wheel(tmp_path, "vllm", "1.1", files={"vllm/_C.abi3.so": b"c"})
    with raises("nothing-to-carry", match="has none of the files"):
        carry(RUST, wheel, tmp_path / "other")
