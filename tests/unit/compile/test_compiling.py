"""What becomes of a compile: kept when it is whole, handed out when it is not, gone on with after an interruption."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagefactory.build.engines.docker import daemon
from imagefactory.build.engines.docker.daemon import Daemon
from imagefactory.compile import capacity, container
from imagefactory.compile import compiling as run
from imagefactory.compile.container import Ended
from imagefactory.compile.job import Request, work_out
from imagefactory.compile.ninja_progress import CompileProgress
from imagefactory.compile.toolchain import CompileProject
from imagefactory.errors.kernels import (
    AuditFailedError,
    CompileBusyError,
    CompileDataError,
    CompileFailedError,
    NotEnoughRoomError,
    ToolchainMisfitError,
    UnknownTargetError,
    WrongSourceError,
)
from imagefactory.errors.locks import LockMissingError
from imagefactory.resolve.wheelhouse.keep import all_kept
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.platforms import MACHINE, wheel_tag
from tests.fixtures.small_factory import Silence

WHOLE = Request(what="flashinfer", vllm="0.32.0", arch="gb10")
PART = replace(WHOLE, targets=("norm",))
VERSION = "0.7.0.post1"


class Watch(Silence):
    def __init__(self) -> None:
        self.steps: list[CompileProgress] = []

    def step(self, progress: CompileProgress) -> None:
        self.steps.append(progress)


class Compiler:
    """Stands in for the container: notes what it is asked, and does what a test says."""

    def __init__(self, work: Callable[[Path, Path], int]) -> None:
        self.work = work
        self.asked: list[dict[str, Any]] = []

    def __call__(self, image: str, command: list[str], **options: Any) -> Ended:
        self.asked.append({"image": image, "command": command, **options})
        places = {mount.place: mount.folder for mount in options["mounts"]}
        options["hear"]("[1/2] Building a.o")
        options["log"].write_text("[1/2] Building a.o\n")
        status = self.work(places["/factory/build"], places["/factory/out"])
        return Ended(status, () if status == 0 else ("nvcc error   : it broke",))


def wheel(out: Path) -> int:
    import zipfile  # noqa: PLC0415

    name = f"flashinfer_jit_cache-{VERSION}"
    with zipfile.ZipFile(out / f"{name}-{wheel_tag(tag='py3-none-manylinux_2_36')}.whl", "w") as archive:
        archive.writestr(f"{name}.dist-info/METADATA", f"Name: flashinfer-jit-cache\nVersion: {VERSION}\n")
        archive.writestr(f"{name}.dist-info/RECORD", "")
    return 0


def library(out: Path) -> int:
    (out / "norm.so").write_bytes(b"code")
    return 0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompileProject:
    """A checkout of its own, on a machine with room and a daemon; nothing is downloaded or assembled."""
    root = tmp_path / "checkout"
    root.mkdir()
    shutil.copy(REPOSITORY / "matrix.yaml", root)
    for name in ("locks", "mods", "images"):
        (root / name).symlink_to(REPOSITORY / name)
    archive = tmp_path / "sdist.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("flashinfer-1/flashinfer/jit/core.py")
        tar.addfile(member, io.BytesIO(b""))
    monkeypatch.setattr(run, "_fetch_sdist", lambda *_: archive)
    monkeypatch.setattr(run, "provide", lambda *_: "toolchain")
    monkeypatch.setattr(daemon, "ask", lambda: Daemon("28.0", MACHINE))
    monkeypatch.setattr(daemon, "image_id", lambda _: "sha256:there")
    monkeypatch.setattr(container, "root_folder", lambda: None)
    monkeypatch.setattr(run, "audit", lambda *_: [])
    monkeypatch.setattr(capacity, "refuse_full_disk", lambda *_: None)
    monkeypatch.setattr(capacity.BuildMachine, "this", classmethod(lambda cls: cls(4, 64.0)))
    return CompileProject(root, Store(tmp_path / "store"))


@contextmanager
def compiling(monkeypatch: pytest.MonkeyPatch, work: Callable[[Path, Path], int]) -> Iterator[Compiler]:
    compiler = Compiler(work)
    monkeypatch.setattr(container, "run", compiler)
    yield compiler


def compile_it(project: CompileProject, request: Request) -> run.Compiled:
    return run.compile_kernels(project, request, Watch(), lambda _: None)


def test_a_whole_wheel_is_kept_and_never_compiled_twice(
    project: CompileProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compiling(monkeypatch, lambda _, out: wheel(out)) as compiler:
        made = compile_it(project, WHOLE)
        again = compile_it(project, WHOLE)
    assert made.wheel == again.wheel
    assert again.log is None
    assert len(compiler.asked) == 1
    assert [kept.key for kept in all_kept(project.store)] == [made.inputs.key]
    left = {path.name for path in (project.store.root / "compile" / made.inputs.key).iterdir()}
    assert left == {".lock", "log"}, "the tree is of no use once there is a wheel"


def test_some_targets_are_handed_out_and_never_kept(
    project: CompileProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compiling(monkeypatch, lambda _, out: library(out)):
        made = compile_it(project, PART)
    assert made.libraries == (project.root / f"build/kernels/flashinfer-v0.32.0-gb10-{MACHINE}/norm.so",)
    assert made.wheel is None
    assert list(all_kept(project.store)) == []


def test_a_failed_compile_keeps_its_tree_and_log_but_no_wheel(
    project: CompileProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(build: Path, out: Path) -> int:
        (build / "a.o").touch()
        wheel(out)
        return 1

    with compiling(monkeypatch, fail), pytest.raises(CompileFailedError) as caught:
        compile_it(project, WHOLE)
    assert "it broke" in caught.value.why
    assert Path(str(caught.value.where)).read_text().startswith("[1/2]")
    assert list(all_kept(project.store)) == []


def test_an_interrupted_compile_is_gone_on_with(
    project: CompileProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(build: Path, out: Path) -> int:
        (build / "a.o").write_text("object")
        wheel(out)
        raise KeyboardInterrupt

    def goes_on(build: Path, out: Path) -> int:
        assert (build / "a.o").read_text() == "object"
        assert list(out.iterdir()) == [], "what an interrupted run left is not taken for a result"
        return wheel(out)

    with compiling(monkeypatch, interrupted), pytest.raises(KeyboardInterrupt):
        compile_it(project, WHOLE)
    assert list(all_kept(project.store)) == []
    with compiling(monkeypatch, goes_on):
        assert compile_it(project, WHOLE).wheel is not None


def test_a_compiler_that_was_killed_points_at_the_memory(
    project: CompileProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compiling(monkeypatch, lambda *_: 137), pytest.raises(CompileFailedError) as caught:
        compile_it(project, WHOLE)
    assert "fewer than 4" in caught.value.fix


def test_a_wheel_that_does_not_run_on_the_chip_is_not_kept(
    project: CompileProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AuditFailedError("x", where="x", why="sm_120a", fix="x")

    monkeypatch.setattr(run, "refuse_failing", refuse)
    with compiling(monkeypatch, lambda _, out: wheel(out)), pytest.raises(AuditFailedError):
        compile_it(project, WHOLE)
    assert list(all_kept(project.store)) == []


def test_a_second_run_of_the_same_compile_is_refused(
    project: CompileProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second(_: Path, out: Path) -> int:
        with pytest.raises(CompileBusyError):
            compile_it(project, WHOLE)
        return wheel(out)

    with compiling(monkeypatch, second):
        assert compile_it(project, WHOLE).wheel is not None


def test_an_unknown_target_is_refused_with_the_nearest(
    project: CompileProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "FACTORY-UNKNOWN " + json.dumps({"unknown": ["nrom"], "known": ["norm", "page"]})
    monkeypatch.setattr(container, "run", lambda *_, **__: Ended(3, (said,)))
    with pytest.raises(UnknownTargetError, match="no target nrom") as caught:
        compile_it(project, PART)
    assert "norm" in caught.value.fix


def test_the_container_is_told_the_chip_and_gets_fixed_places(
    project: CompileProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compiling(monkeypatch, lambda _, out: library(out)) as compiler:
        compile_it(project, PART)
    [asked] = compiler.asked
    environment = asked["environment"]
    assert environment["FLASHINFER_CUDA_ARCH_LIST"] == "12.1a"
    assert environment["SOURCE_DATE_EPOCH"] == "315619200"
    order = json.loads(asked["command"][-1])
    assert (order["targets"], order["jobs"], order["version"]) == (["norm"], 4, VERSION)
    assert {mount.place for mount in asked["mounts"]} == {
        "/factory/src", "/factory/build", "/factory/out", "/ccache", "/factory/tools",
    }  # fmt: skip


def test_too_little_memory_is_said_before_anything_is_done(
    project: CompileProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity.BuildMachine, "this", classmethod(lambda cls: cls(4, 2.0)))
    monkeypatch.setattr(run, "provide", lambda *_: pytest.fail("the toolchain must not be assembled"))
    with pytest.raises(NotEnoughRoomError):
        compile_it(project, WHOLE)
    assert not (project.store.root / "compile").exists()


def test_a_wheel_that_no_image_could_run_is_refused_before_hours_of_work(project: CompileProject) -> None:
    with pytest.raises(ToolchainMisfitError) as caught:
        work_out(project, replace(WHOLE, what="vllm"))
    assert "GCC 13" in caught.value.why
    assert "2.41" in caught.value.why
    assert "2.36" in caught.value.why


def test_compilers_that_are_not_pinned_are_asked_for_by_the_command_that_pins_them(
    project: CompileProject,
) -> None:
    with pytest.raises(LockMissingError) as caught:
        work_out(project, replace(WHOLE, vllm="0.19.1"))
    assert "invoke lock --toolchain 0.19.1" in caught.value.fix


def test_an_arch_without_a_gpu_has_nothing_to_compile_for(project: CompileProject) -> None:
    for what in ("vllm", "flashinfer"):
        with pytest.raises(CompileDataError, match="cpu has nothing to compile for"):
            work_out(project, replace(WHOLE, what=what, arch="cpu"))


def test_a_folder_that_is_not_flashinfer_is_refused(project: CompileProject, tmp_path: Path) -> None:
    with pytest.raises(WrongSourceError, match="not flashinfer"):
        work_out(project, replace(WHOLE, sources=(f"flashinfer={tmp_path}",)))


def test_a_folder_instead_of_the_sdist_is_still_the_version_that_vllm_asks_for(
    project: CompileProject, tmp_path: Path
) -> None:
    (tmp_path / "flashinfer" / "jit").mkdir(parents=True)
    (tmp_path / "flashinfer" / "jit" / "core.py").touch()
    inputs = work_out(project, replace(WHOLE, sources=(f"flashinfer={tmp_path}",))).inputs
    assert inputs.version == VERSION
    assert inputs.sources["flashinfer"].startswith("tree:")


def test_everything_that_decides_the_result_is_in_the_key(project: CompileProject, tmp_path: Path) -> None:
    cutlass = tmp_path / "cutlass"
    (cutlass / "include" / "cutlass").mkdir(parents=True)
    (cutlass / "include" / "cutlass" / "cutlass.h").touch()
    base = replace(
        WHOLE,
        what="vllm",
        targets=("_qutlass_C",),
        sources=(f"cutlass={cutlass}", f"qutlass={_qutlass(tmp_path)}"),
    )
    keys = {work_out(project, base).inputs.key}
    keys.add(work_out(project, replace(base, without_mods=("preserve-sm121a",))).inputs.key)
    keys.add(work_out(project, replace(base, targets=("_C_stable_libtorch",))).inputs.key)
    keys.add(work_out(project, replace(base, arch="b200")).inputs.key)
    (cutlass / "include" / "cutlass" / "cutlass.h").write_text("changed")
    keys.add(work_out(project, base).inputs.key)
    assert len(keys) == 5
    assert work_out(project, replace(base, jobs=7)).inputs.key in keys, "how fast it goes does not matter"


def _qutlass(folder: Path) -> Path:
    (folder / "qutlass" / "qutlass" / "csrc").mkdir(parents=True)
    (folder / "qutlass" / "qutlass" / "csrc" / "bindings.cpp").touch()
    return folder / "qutlass"
