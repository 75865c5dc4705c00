"""The data of compile.yaml about releases, and how mistakes in it are reported."""

from dataclasses import replace
from itertools import product
from pathlib import Path

from imagefactory.compile.settings import FILE, WHAT, load_settings
from imagefactory.project.cells import Cell, called_modules, modules_called_on
from imagefactory.project.matrix import load_matrix
from imagefactory.project.server_versions import ServerVersion
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises

SETTINGS = load_settings(REPOSITORY)
MATRIX = load_matrix(REPOSITORY / "matrix.yaml")
OLDER = SETTINGS.toolchains["trixie"].model_copy(update={"python": "3.11", "glibc": "2.36", "gcc": 12})


def release(number: str) -> ServerVersion:
    return ServerVersion(release=number)


def test_oldest_toolchain_with_a_new_enough_compiler_is_chosen() -> None:
    settings = SETTINGS.model_copy(update={"toolchains": {"older": OLDER, **SETTINGS.toolchains}})
    assert settings.toolchain_for("flashinfer", release("0.32.0")) == "older"
    assert settings.toolchain_for("vllm", release("0.28.0")) == "older"
    assert settings.toolchain_for("vllm", release("0.32.0")) == "trixie"
    need = SETTINGS.compilers[0].model_copy(update={"gcc": 99})
    settings = SETTINGS.model_copy(update={"compilers": [need]})
    with raises("bad-compile-data", match="No toolchain can compile vllm") as caught:
        settings.toolchain_for("vllm", release("0.32.0"))
    assert "GCC 99" in caught.value.why


def test_git_reference_has_the_dependencies_of_the_release_before_it() -> None:
    pull = ServerVersion(git="a/b", ref="refs/pull/1/head", counts_as="0.21.1.dev0")
    assert SETTINGS.nearest(pull) == "0.20.2"
    assert SETTINGS.sources_of("pr-1", pull) == SETTINGS.sources_of("0.20.2", release("0.20.2"))


def test_every_release_of_the_matrix_has_its_dependencies_listed() -> None:
    releases = {item.release for item in MATRIX.vllm.values() if item.release}
    assert releases <= SETTINGS.sources["cutlass"].refs.keys()


def test_mistake_is_reported_with_its_line(tmp_path: Path) -> None:
    text = (REPOSITORY / FILE).read_text("utf-8")
    line = text[: text.index("    gcc: 13")].count("\n") + 1
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_text(text.replace("    gcc: 13", "    gcc: thirteen"), "utf-8")
    with raises("bad-compile-data") as caught:
        load_settings(tmp_path)
    assert str(caught.value.where) == f"{FILE}:{line}"


def test_wheel_runs_with_the_same_python_where_the_libc_is_not_older() -> None:
    old, new = MATRIX.bases["bookworm"], MATRIX.bases["trixie"]
    newest = SETTINGS.toolchains["trixie"]
    assert OLDER.runs_on(old)
    assert newest.runs_on(new)
    assert not newest.runs_on(old.model_copy(update={"python": new.python}))
    assert not OLDER.runs_on(new)


def test_every_arch_with_a_gpu_has_compilers_for_its_base() -> None:
    for name, arch in MATRIX.archs.items():
        if not arch.torch_cuda_arch_list:
            continue
        for what, (vllm, version) in product(WHAT, MATRIX.vllm.items()):
            toolchain = SETTINGS.toolchains[SETTINGS.toolchain_for(what, version)]
            assert toolchain.runs_on(MATRIX.bases[arch.base]), (name, what, vllm)


def test_flashinfer_gets_the_modules_that_models_reach_on_the_arch() -> None:
    def reached(arch: str) -> tuple[str, ...]:
        return modules_called_on(MATRIX, "0.32.0", arch)

    assert reached("gb10") == reached("rtx5090") == ("sampling", "fp4_gemm_cutlass_sm120", "fused_moe_120")
    assert reached("h100") == reached("b200") == ("sampling",)
    gemma, experts = Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64"), "gemma4-26b-a4b"
    assert list(called_modules(MATRIX, gemma)) == ["sampling"]
    assert list(called_modules(MATRIX, replace(gemma, model=experts))) == ["sampling", "fused_moe_120"]
    assert called_modules(MATRIX, replace(gemma, version="sglang-0.5.23")) == {}
