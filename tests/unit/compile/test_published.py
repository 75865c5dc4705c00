"""What the toolchain cannot compile comes from the published wheel, or is said to be missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefactory.compile.job import work_out
from imagefactory.compile.published import Carried, carry, find_carried, published_wheel
from imagefactory.compile.request import Request
from imagefactory.compile.toolchain import CompileProject
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.platforms import MACHINE, PLATFORMS
from tests.fixtures.wheels import make_wheel

RUST = ("vllm/vllm-rs", "vllm/_rust_*.so")


@pytest.fixture
def project(tmp_path: Path) -> CompileProject:
    return CompileProject(REPOSITORY, Store(tmp_path / "store"))


def found(project: CompileProject, vllm: str, platform: str, targets: tuple[str, ...] = ()) -> Carried | None:
    return find_carried(project, vllm, platform, targets)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_programs_in_rust_come_from_the_published_wheel_of_the_platform(
    project: CompileProject, platform: str
) -> None:
    carried = found(project, "0.32.0", platform)
    assert carried is not None
    assert carried.wheel is not None
    machine = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}[platform]
    assert carried.wheel.file == f"vllm-0.32.0-cp38-abi3-manylinux_2_28_{machine}.whl"
    assert carried.files == RUST
    assert str(carried).startswith(f"taken over from {carried.wheel.file}, unchanged: vllm/vllm-rs")


def test_key_covers_the_published_wheel(project: CompileProject) -> None:
    job = work_out(project, Request(what="vllm", vllm="0.32.0", arch="gb10"))
    carried = job.sources.carried
    assert carried is not None
    assert carried.wheel is not None
    assert job.inputs.platform.endswith(MACHINE)
    assert job.inputs.sources["published"] == f"wheel:{carried.wheel.sha256}"


def test_nothing_is_taken_over_by_single_targets_or_releases_without_rust(project: CompileProject) -> None:
    assert found(project, "0.32.0", "linux/arm64", ("_qutlass_C",)) is None
    assert found(project, "0.20.2", "linux/arm64") is None


def test_git_reference_is_said_to_lack_them(project: CompileProject) -> None:
    carried = found(project, "nightly", "linux/arm64")
    assert carried is not None
    assert carried.wheel is None
    assert str(carried).startswith("left out, since there is no published wheel")


def test_release_without_a_locked_wheel_is_refused(project: CompileProject) -> None:
    with raises("nothing-to-carry", match=r"0\.28\.0 for linux/amd64 is not locked") as caught:
        found(project, "0.28.0", "linux/amd64")
    assert "./inv lock" in caught.value.fix


def test_files_are_copied_as_programs(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "vllm/vllm-rs": b"program",
        "vllm/_rust_a.abi3.so": b"a",
        "vllm/_C.abi3.so": b"c",
    }
    wheel = make_wheel(tmp_path, "vllm", "1.0", files=files)
    carry(RUST, wheel, tmp_path / "src")
    assert sorted(path.name for path in (tmp_path / "src" / "vllm").iterdir()) == [
        "_rust_a.abi3.so",
        "vllm-rs",
    ]
    assert (tmp_path / "src/vllm/vllm-rs").read_bytes() == b"program"
    assert (tmp_path / "src/vllm/vllm-rs").stat().st_mode & 0o111


def test_wheel_without_them_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "vllm", "1.0", files={"vllm/_C.abi3.so": b"c"})
    with raises("nothing-to-carry", match="has none of the files"):
        carry(RUST, wheel, tmp_path / "src")


def test_published_wheel_is_the_locked_one_of_the_platform(project: CompileProject) -> None:
    found = published_wheel(project, "0.28.0", "linux/arm64")
    assert found.file == "vllm-0.28.0-cp38-abi3-manylinux_2_28_aarch64.whl"
    with raises("bad-graft-base", match=r"vLLM 0\.1 for linux/arm64 is locked") as caught:
        published_wheel(project, "0.1", "linux/arm64")
    assert "./inv lock" in caught.value.fix
