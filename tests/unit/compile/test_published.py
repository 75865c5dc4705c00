"""What the toolchain cannot compile comes from the published wheel, or is said to be missing."""

from pathlib import Path

import pytest

from imagefactory.compile import job
from imagefactory.compile.job import JobSources, work_out
from imagefactory.compile.request import Request
from imagefactory.compile.source_tree import carry
from imagefactory.compile.toolchain import CompileProject
from tests.fixtures.failures import raises
from tests.fixtures.platforms import MACHINE, PLATFORMS
from tests.fixtures.wheels import make_wheel

RUST = ("vllm/vllm-rs", "vllm/_rust_*.so")


def found(project: CompileProject, vllm: str, platform: str, targets: tuple[str, ...] = ()) -> JobSources:
    request = Request(what="vllm", vllm=vllm, arch="gb10", targets=targets, inspects=bool(targets))
    return job._vllm(project, request, platform)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_programs_in_rust_come_from_the_published_wheel_of_the_platform(project: CompileProject, platform: str) -> None:
    sources = found(project, "0.32.0", platform)
    machine = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}[platform]
    assert sources.carried_from is not None
    assert sources.carried_from.file == f"vllm-0.32.0-cp38-abi3-manylinux_2_28_{machine}.whl"
    assert sources.carried == RUST


def test_key_covers_the_published_wheel(project: CompileProject) -> None:
    job = work_out(project, Request(what="vllm", vllm="0.32.0", arch="gb10"))
    assert job.sources.carried_from is not None
    assert job.inputs.platform.endswith(MACHINE)
    assert job.inputs.sources["published"] == f"wheel:{job.sources.carried_from.sha256}"


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
