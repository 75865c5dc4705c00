"""The data of compile.yaml about releases, and how mistakes in it are reported."""

from dataclasses import replace
from pathlib import Path

from imagefactory.compile.settings import FILE, load_settings
from imagefactory.lock.wheelhouse.keep import why_unfit
from imagefactory.project.cells import Cell, called_modules, modules_called_on
from imagefactory.project.matrix import load_matrix
from imagefactory.project.server_versions import ServerVersion
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises

SETTINGS = load_settings(REPOSITORY)
MATRIX = load_matrix(REPOSITORY / "matrix.yaml")


def release(number: str) -> ServerVersion:
    return ServerVersion(release=number)


def test_git_reference_has_the_dependencies_of_the_release_before_it() -> None:
    pull = ServerVersion(git="a/b", ref="refs/pull/1/head", counts_as="0.21.1.dev0")
    assert SETTINGS.nearest(pull) == "0.20.2"
    assert SETTINGS.sources_of("pr-1", pull) == SETTINGS.sources_of("0.20.2", release("0.20.2"))


def test_every_release_of_the_matrix_has_its_dependencies_listed() -> None:
    releases = {item.release for item in MATRIX.vllm.values() if item.release}
    assert releases <= SETTINGS.sources["cutlass"].refs.keys()


def test_mistake_is_reported_with_its_line(tmp_path: Path) -> None:
    text = (REPOSITORY / FILE).read_text("utf-8")
    line = text[: text.index("  vllm: {job_gb")].count("\n") + 1
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_text(text.replace("job_gb: 5", "job_gb: five"), "utf-8")
    with raises("bad-compile-data") as caught:
        load_settings(tmp_path)
    assert str(caught.value.where) == f"{FILE}:{line}"


def test_every_arch_with_a_gpu_has_compilers_for_its_base() -> None:
    for name, arch in MATRIX.archs.items():
        assert not (arch.torch_cuda_arch_list and why_unfit(SETTINGS.system, MATRIX.bases[arch.base])), name


def test_flashinfer_gets_the_modules_that_models_reach_on_the_arch() -> None:
    def reached(arch: str) -> tuple[str, ...]:
        return modules_called_on(MATRIX, "0.32.0", arch)

    assert reached("gb10") == reached("rtx5090") == ("sampling", "fp4_gemm_cutlass_sm120", "fused_moe_120")
    assert reached("h100") == reached("b200") == ("sampling",)
    gemma, experts = Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64"), "gemma4-26b-a4b"
    assert list(called_modules(MATRIX, gemma)) == ["sampling"]
    assert list(called_modules(MATRIX, replace(gemma, model=experts))) == ["sampling", "fused_moe_120"]
    assert called_modules(MATRIX, replace(gemma, version="sglang-0.5.23")) == {}
