"""The results of a compile: wheels are kept, parts are handed out, and interrupted runs are resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from imagefactory.build.watch import Watcher
from imagefactory.compile.capacity import BuildMachine
from imagefactory.compile.compiler import Compiler
from imagefactory.compile.compiling import Compiled, compile_kernels
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
from imagefactory.matrix.targets import host_machine
from imagefactory.plan.plan import Plan
from imagefactory.resolve.wheelhouse.keep import all_kept
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.platforms import MACHINE, wheel_tag
from tests.fixtures.small_factory import Silence

WHOLE = Request(what="flashinfer", vllm="0.32.0", arch="gb10")
VERSION = "0.7.0.post1"
FITTING, FOREIGN = "sm_121a", "sm_120a"
IMAGES = Path("/images")


class Watch(Silence):
    def __init__(self) -> None:
        self.steps: list[CompileProgress] = []

    def step(self, progress: CompileProgress) -> None:
        self.steps.append(progress)


@dataclass(frozen=True)
class Machine(BuildMachine):
    free: float = 1000.0
    free_for_images: float = 1000.0

    def free_gb(self, folder: Path) -> float:
        return self.free_for_images if folder == IMAGES else self.free


ROOMY = Machine(4, 64.0)


class FakeCompiler(Compiler):
    """A compiler without Docker: records what it is asked to do, and does what a test says."""

    def __init__(self, work: Callable[[Path, Path], int], machine: Machine = ROOMY) -> None:
        self.work = work
        self.at = machine
        self.failure = ("nvcc error   : it broke",)
        self.provided: list[str] = []
        self.asked: list[dict[str, Any]] = []

    def machine(self) -> BuildMachine:
        return self.at

    def refuse_foreign(self, platform: str) -> None:
        assert platform == f"linux/{MACHINE}"

    def image_folder(self, plan: Plan) -> Path:  # noqa: ARG002
        return IMAGES

    def provide(self, project: CompileProject, plan: Plan, watch: Watcher) -> str:  # noqa: ARG002
        self.provided.append(plan.key)
        return "toolchain"

    def run(self, image: str, command: Sequence[str], **options: Any) -> Ended:
        self.asked.append({"image": image, "command": command, **options})
        places = {mount.place: mount.folder for mount in options["mounts"]}
        options["hear"]("[1/2] Building a.o")
        options["log"].write_text("[1/2] Building a.o\n")
        status = self.work(places["/factory/build"], places["/factory/out"])
        return Ended(status, () if status == 0 else self.failure)


def wheel(out: Path, chip: str = FITTING) -> int:
    name = f"flashinfer_jit_cache-{VERSION}"
    with ZipFile(out / f"{name}-{wheel_tag(tag='py3-none-manylinux_2_36')}.whl", "w") as archive:
        archive.writestr("flashinfer_jit_cache/norm.so", f"Fatbin elf code:\n=====\narch = {chip}\n")
        archive.writestr(f"{name}.dist-info/METADATA", f"Name: flashinfer-jit-cache\nVersion: {VERSION}\n")
        archive.writestr(f"{name}.dist-info/RECORD", "")
    return 0


def library(out: Path) -> int:
    (out / "norm.so").write_bytes(b"code")
    return 0


@pytest.fixture
def project(tmp_path: Path) -> CompileProject:
    """A checkout with its own store, whose cuobjdump prints what a library consists of."""
    root = tmp_path / "checkout"
    root.mkdir()
    shutil.copy(REPOSITORY / "matrix.yaml", root)
    for name in ("locks", "mods", "images"):
        (root / name).symlink_to(REPOSITORY / name)
    project = CompileProject(root, Store(tmp_path / "store"))
    tool = project.tool_lock.find("nvidia-cuda-cuobjdump", host_machine())
    cuobjdump = project.store.root / "tools" / tool.sha256 / "cuobjdump"
    cuobjdump.parent.mkdir(parents=True)
    cuobjdump.write_text('#!/bin/sh\ncat "$1"\n')
    cuobjdump.chmod(0o755)
    return project


@pytest.fixture
def whole(tmp_path: Path) -> Request:
    """A request for all of FlashInfer, from a folder of sources."""
    core = tmp_path / "sources" / "flashinfer" / "jit" / "core.py"
    core.parent.mkdir(parents=True)
    core.touch()
    return replace(WHOLE, sources=(f"flashinfer={tmp_path / 'sources'}",))


@pytest.fixture
def part(whole: Request) -> Request:
    """A request for one module of FlashInfer."""
    return replace(whole, targets=("norm",))


def compile_it(project: CompileProject, request: Request, compiler: FakeCompiler) -> Compiled:
    return compile_kernels(project, request, Watch(), lambda _: None, compiler=compiler)


def test_a_whole_wheel_is_kept_and_never_compiled_twice(project: CompileProject, whole: Request) -> None:
    compiler = FakeCompiler(lambda _, out: wheel(out))
    made = compile_it(project, whole, compiler)
    again = compile_it(project, whole, compiler)
    assert made.wheel == again.wheel
    assert again.log is None
    assert len(compiler.asked) == 1
    assert [kept.key for kept in all_kept(project.store)] == [made.inputs.key]
    left = {path.name for path in (project.store.root / "compile" / made.inputs.key).iterdir()}
    assert left == {".lock", "log"}, "the tree is of no use once there is a wheel"


def test_libraries_of_some_targets_are_handed_out_but_not_kept(
    project: CompileProject, part: Request
) -> None:
    made = compile_it(project, part, FakeCompiler(lambda _, out: library(out)))
    assert made.libraries == (project.root / f"build/kernels/flashinfer-v0.32.0-gb10-{MACHINE}/norm.so",)
    assert made.wheel is None
    assert list(all_kept(project.store)) == []


def test_a_failed_compile_keeps_its_tree_and_log_but_no_wheel(
    project: CompileProject, whole: Request
) -> None:
    def fail(build: Path, out: Path) -> int:
        (build / "a.o").touch()
        wheel(out)
        return 1

    with pytest.raises(CompileFailedError) as caught:
        compile_it(project, whole, FakeCompiler(fail))
    assert "it broke" in caught.value.why
    assert Path(str(caught.value.where)).read_text().startswith("[1/2]")
    assert list(all_kept(project.store)) == []


def test_an_interrupted_compile_is_resumed(project: CompileProject, whole: Request) -> None:
    def interrupted(build: Path, out: Path) -> int:
        (build / "a.o").write_text("object")
        wheel(out)
        raise KeyboardInterrupt

    def resumed(build: Path, out: Path) -> int:
        assert (build / "a.o").read_text() == "object"
        assert list(out.iterdir()) == [], "leftovers of an interrupted run are not taken for a result"
        return wheel(out)

    with pytest.raises(KeyboardInterrupt):
        compile_it(project, whole, FakeCompiler(interrupted))
    assert list(all_kept(project.store)) == []
    assert compile_it(project, whole, FakeCompiler(resumed)).wheel is not None


def test_a_killed_compiler_points_at_the_memory(project: CompileProject, whole: Request) -> None:
    with pytest.raises(CompileFailedError) as caught:
        compile_it(project, whole, FakeCompiler(lambda *_: 137))
    assert "fewer than 4" in caught.value.fix


def test_a_wheel_that_does_not_run_on_the_chip_is_not_kept(project: CompileProject, whole: Request) -> None:
    with pytest.raises(AuditFailedError, match="would not run"):
        compile_it(project, whole, FakeCompiler(lambda _, out: wheel(out, FOREIGN)))
    assert list(all_kept(project.store)) == []


def test_a_second_run_of_the_same_compile_is_refused(project: CompileProject, whole: Request) -> None:
    def second(_: Path, out: Path) -> int:
        with pytest.raises(CompileBusyError):
            compile_it(project, whole, FakeCompiler(lambda _, out: wheel(out)))
        return wheel(out)

    assert compile_it(project, whole, FakeCompiler(second)).wheel is not None


def test_an_unknown_target_is_refused_with_the_nearest(project: CompileProject, part: Request) -> None:
    compiler = FakeCompiler(lambda *_: 3)
    compiler.failure = ("FACTORY-UNKNOWN " + json.dumps({"unknown": ["nrom"], "known": ["norm", "page"]}),)
    with pytest.raises(UnknownTargetError, match="no target nrom") as caught:
        compile_it(project, part, compiler)
    assert "norm" in caught.value.fix


def test_the_container_knows_the_chip_and_has_fixed_paths(project: CompileProject, part: Request) -> None:
    compiler = FakeCompiler(lambda _, out: library(out))
    compile_it(project, part, compiler)
    [asked] = compiler.asked
    environment = asked["environment"]
    assert environment["FLASHINFER_CUDA_ARCH_LIST"] == "12.1a"
    assert environment["SOURCE_DATE_EPOCH"] == "315619200"
    order = json.loads(asked["command"][-1])
    assert (order["targets"], order["jobs"], order["version"]) == (["norm"], 4, VERSION)
    assert {mount.place for mount in asked["mounts"]} == {
        "/factory/src", "/factory/build", "/factory/out", "/ccache", "/factory/tools",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "missing"),
    [
        (Machine(4, 2.0), "memory for 1 compiler"),
        (Machine(4, 64.0, free=7.9), "disk space for the objects"),
        (Machine(4, 64.0, free_for_images=1.0), "disk space for the toolchain's image"),
    ],
)
def test_too_little_memory_or_disk_is_reported_before_any_work(
    project: CompileProject, whole: Request, machine: Machine, missing: str
) -> None:
    compiler = FakeCompiler(lambda _, out: wheel(out), machine)
    with pytest.raises(NotEnoughRoomError, match=missing):
        compile_it(project, whole, compiler)
    assert compiler.provided == []
    assert not (project.store.root / "compile").exists()


def test_a_wheel_that_no_image_could_run_is_refused_before_hours_of_work(project: CompileProject) -> None:
    with pytest.raises(ToolchainMisfitError) as caught:
        work_out(project, replace(WHOLE, what="vllm"))
    assert "GCC 13" in caught.value.why
    assert "2.41" in caught.value.why
    assert "2.36" in caught.value.why


def test_without_a_toolchain_lock_the_error_names_the_command_that_makes_it(project: CompileProject) -> None:
    with pytest.raises(LockMissingError) as caught:
        work_out(project, replace(WHOLE, vllm="0.19.1"))
    assert "invoke lock --toolchain 0.19.1" in caught.value.fix


def test_an_arch_without_a_gpu_has_nothing_to_compile_for(project: CompileProject) -> None:
    for what in ("vllm", "flashinfer"):
        with pytest.raises(CompileDataError, match="cpu has no GPU to compile for"):
            work_out(project, replace(WHOLE, what=what, arch="cpu"))


def test_a_folder_that_is_not_flashinfer_is_refused(project: CompileProject, tmp_path: Path) -> None:
    with pytest.raises(WrongSourceError, match="not flashinfer"):
        work_out(project, replace(WHOLE, sources=(f"flashinfer={tmp_path}",)))


def test_a_folder_that_replaces_the_sdist_keeps_the_version_that_vllm_requires(
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
