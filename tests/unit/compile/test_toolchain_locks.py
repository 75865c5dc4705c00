"""Toolchains: what the sources require, and that the committed locks match matrix.yaml and compile.yaml."""

from itertools import product

from imagefactory.compile.toolchain import (
    CompileProject,
    build_requirements,
    expected_toolchain_locks,
    flashinfer_version,
    identity,
    image_name,
    locked_flashinfer,
    locked_toolchains,
    make_toolchain_locks,
    pinned,
    toolchain_cells,
    toolchain_plan,
)
from tests.fixtures.failures import raises

PYPROJECT = """\
[build-system]
requires = ["cmake>=3.26.1", "torch == 2.13.0", "wheel"]
"""


def test_build_requirements_and_pins_are_read() -> None:
    requires = build_requirements(PYPROJECT, "x")
    assert requires == ["cmake>=3.26.1", "torch==2.13.0", "wheel"]
    assert pinned("torch", requires, "x") == "2.13.0"
    with raises("bad-compile-data", match="No version of torch is pinned"):
        pinned("torch", ["torch>=2.13", "torchvision==1"], "x")
    text = "-r common.txt\n# flashinfer-python==9\nflashinfer-python==0.7.0.post1  # keep in sync\n"
    assert flashinfer_version(text, "x") == "0.7.0.post1"
    for bad in (None, "", "[build-system]", "[build-system]\nrequires = 3", "]"):
        with raises("bad-compile-data", match="cannot be read"):
            build_requirements(bad, "x")


def test_version_has_toolchains_for_both_platforms(project: CompileProject) -> None:
    names = [(cell.arch, cell.platform) for cell in toolchain_cells(project, "0.32.0")]
    assert names == list(product(["toolchain-trixie"], ["linux/amd64", "linux/arm64"]))


def test_committed_toolchains_match_the_matrix_and_contain_the_compilers(project: CompileProject) -> None:
    cells = list(locked_toolchains(project))
    assert len(cells) >= 4
    expected = {entry.path: entry.made_from for entry in expected_toolchain_locks(project)}
    for cell in cells:
        lock = project.wheel_lock(cell)
        assert lock.made_from == expected[project.wheel_lock_path(cell)]
        assert project.base_lock(cell).made_from == expected[project.base_lock_path(cell)]
        versions = {wheel.name: wheel.version for wheel in lock.wheels}
        assert versions["nvidia-cuda-nvcc"].startswith("13.0.")
        needed = {"torch", "cmake", "ninja", "apache-tvm-ffi", "nvidia-cuda-crt", "nvidia-nvvm"}
        assert needed <= versions.keys()
        assert "triton" not in versions
        debs = {deb.name for deb in project.base_lock(cell).debs}
        assert {"gcc", "g++", "git", "ccache", "patch"} <= debs
    assert locked_flashinfer(project, "0.32.0").file == "flashinfer_python-0.7.0.post1.tar.gz"


def test_identity_of_a_toolchain_depends_on_its_files_and_not_on_its_layers(project: CompileProject) -> None:
    plans = [toolchain_plan(project, cell) for cell in toolchain_cells(project, "0.32.0")]
    assert len({identity(plan) for plan in plans}) == 2
    layers = tuple(layer.model_copy(update={"key": "0" * 64}) for layer in plans[0].layers)
    assert identity(plans[0].model_copy(update={"layers": layers})) == identity(plans[0])
    assert image_name(plans[0]).startswith("imagefactory/toolchain:trixie-")


def test_unknown_version_is_refused_with_the_nearest(project: CompileProject) -> None:
    with raises("unknown-name") as caught:
        list(make_toolchain_locks(project, ["0.23"], say=lambda _: None))
    assert "0.32.0" in caught.value.fix or "0.2" in caught.value.fix


def test_graft_shares_the_compilers_of_its_release(project: CompileProject) -> None:
    assert toolchain_cells(project, "0.28.0-graft") == toolchain_cells(project, "0.28.0")
    assert locked_flashinfer(project, "0.28.0-graft") == locked_flashinfer(project, "0.28.0")
