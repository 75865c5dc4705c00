"""A compile keeps its wheel, resumes after an interrupt, and refuses what cannot succeed; grafts too."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zipfile import ZipFile

import pytest

from imagefactory.assemble.watch import Watcher
from imagefactory.compile import compiling, container, toolchain
from imagefactory.compile.compiling import REMOTE, Compiled
from imagefactory.compile.container import BuildMachine, Ended
from imagefactory.compile.job import Request, requests_of, work_out
from imagefactory.compile.toolchain import CompileProject
from imagefactory.lock.wheelhouse.keep import all_kept, read_graft
from imagefactory.plan.plan import Plan
from imagefactory.project.locks.files import LockedSource
from imagefactory.store.digests import file_sha256
from tests.fixtures.extensions import extension
from tests.fixtures.failures import raises
from tests.fixtures.fatbins import container as fatbin
from tests.fixtures.platforms import MACHINE, wheel_tag
from tests.fixtures.small_factory import RecordingWatcher
from tests.fixtures.wheels import make_wheel

WHOLE = Request(what="flashinfer", vllm="0.32.0", arch="gb10")
"""A request for all of FlashInfer."""
VERSION = "0.7.0.post1"
FITTING, FOREIGN = "sm_121a", "sm_120a"


class Watch(RecordingWatcher):
    def step(self, done: int, total: int) -> None:
        assert (done, total) == (1, 2)


@dataclass(frozen=True)
class Machine(BuildMachine):
    free: float = 1000.0

    def free_gb(self, folder: Path) -> float:  # noqa: ARG002
        return self.free


ROOMY = Machine(4, 64.0)


class FakeCompiler:
    """A compiler without Docker: records what it is asked to do, and does what a test says."""

    def __init__(self, work: Callable[[Path, Path], int], machine: Machine = ROOMY) -> None:
        self.work = work
        self.machine = machine
        self.failure: tuple[str, ...] = ("nvcc error   : it broke",)
        self.provided: list[str] = []
        self.asked: list[dict[str, Any]] = []

    def provide(self, project: CompileProject, plan: Plan, watch: Watcher) -> str:  # noqa: ARG002
        assert plan.platform == f"linux/{MACHINE}"
        self.provided.append(plan.key)
        return "toolchain"

    def run(self, image: str, command: Sequence[str], **options: Any) -> Ended:
        self.asked.append({"image": image, "command": command, **options})
        places = {mount.place: mount.folder for mount in options["mounts"]}
        options["hear"]("[1/2] Building a.o")
        options["log"].write_text("[1/2] Building a.o\n")
        status = self.work(places["/factory/build"], places["/factory/out"])
        return Ended(status, () if status == 0 else self.failure)


def compile_it(project: CompileProject, request: Request, compiler: FakeCompiler) -> Compiled:
    with (
        patch.object(BuildMachine, "this", lambda: compiler.machine),
        patch.object(toolchain, "provide", compiler.provide),
        patch.object(compiling, "fill", lambda *_: None),
        patch.object(container, "run", compiler.run),
    ):
        return compiling.compile_kernels(project, request, Watch(), lambda _: None)


def wheel(out: Path, chip: str = FITTING) -> int:
    name = f"flashinfer_jit_cache-{VERSION}"
    with ZipFile(out / f"{name}-{wheel_tag(tag='py3-none-manylinux_2_41')}.whl", "w") as archive:
        archive.writestr("flashinfer_jit_cache/norm.so", extension("norm", code=fatbin(chip)))
        archive.writestr(f"{name}.dist-info/METADATA", f"Name: flashinfer-jit-cache\nVersion: {VERSION}\n")
        archive.writestr(f"{name}.dist-info/RECORD", "")
    return 0


def test_wheel_is_kept_and_never_compiled_twice(project: CompileProject) -> None:
    compiler = FakeCompiler(lambda _, out: wheel(out))
    made = compile_it(project, WHOLE, compiler)
    again = compile_it(project, WHOLE, compiler)
    assert made.wheel == again.wheel
    assert again.log is None
    assert len(compiler.asked) == 1
    assert [kept.key for kept in all_kept(project.store)] == [made.inputs.key]
    folder = project.store.root / "compile" / made.inputs.key
    left = {path.name for path in folder.iterdir()}
    assert left == {".lock", "log"}, "the tree is of no use once there is a wheel"


def test_wheel_that_names_no_glibc_gets_that_of_its_compilers(project: CompileProject) -> None:
    def unnamed(_: Path, out: Path) -> int:
        files: dict[str, bytes | str] = {"flashinfer_jit_cache/norm.so": extension("norm", code=fatbin(FITTING))}
        make_wheel(out, "flashinfer-jit-cache", VERSION, files=files, tag=wheel_tag(tag="py3-none-linux"))
        return 0

    made = compile_it(project, WHOLE, FakeCompiler(unnamed))
    assert made.wheel.filename.endswith(f"-py3-none-{wheel_tag(tag='manylinux_2_41')}.whl")
    assert made.inputs.system == {"python": "3.13", "glibc": "2.41", "cuda": "13.0"}


def test_failed_compile_keeps_its_tree_and_log_but_no_wheel(project: CompileProject) -> None:
    def fail(build: Path, out: Path) -> int:
        (build / "a.o").touch()
        wheel(out)
        return 1

    def killed(build: Path, _: Path) -> int:
        assert (build / "a.o").exists(), "what is compiled already is kept"
        return 137

    with raises("compile-failed") as caught:
        compile_it(project, WHOLE, FakeCompiler(fail))
    assert "it broke" in caught.value.why
    assert Path(str(caught.value.where)).read_text().startswith("[1/2]")
    assert list(all_kept(project.store)) == []
    with raises("compile-failed") as caught:
        compile_it(project, WHOLE, FakeCompiler(killed))
    assert "fewer than 4" in caught.value.fix, "it was killed"
    with raises("audit-failed", match="would not run"):
        compile_it(project, WHOLE, FakeCompiler(lambda _, out: wheel(out, FOREIGN)))
    assert list(all_kept(project.store)) == []


def test_interrupted_compile_is_resumed(project: CompileProject) -> None:
    def interrupted(build: Path, out: Path) -> int:
        (build / "a.o").write_text("object")
        wheel(out)
        raise KeyboardInterrupt

    def resumed(build: Path, out: Path) -> int:
        assert (build / "a.o").read_text() == "object"
        assert list(out.iterdir()) == [], "leftovers of an interrupted run are not taken for a result"
        return wheel(out)

    with pytest.raises(KeyboardInterrupt):
        compile_it(project, WHOLE, FakeCompiler(interrupted))
    assert list(all_kept(project.store)) == []
    assert compile_it(project, WHOLE, FakeCompiler(resumed)).wheel is not None


def test_full_disk_is_named(project: CompileProject) -> None:
    compiler = FakeCompiler(lambda *_: 1)
    compiler.failure = ("FAILED: 100.o", "fatal error: error writing to 100.o: No space left on device")
    with raises("disk-full", match="disk was full") as caught:
        compile_it(project, WHOLE, compiler)
    assert "100.o" in caught.value.why
    assert "kept" in caught.value.fix


def test_second_run_of_the_same_compile_is_refused(project: CompileProject) -> None:
    def second(_: Path, out: Path) -> int:
        with raises("compile-busy"):
            compile_it(project, WHOLE, FakeCompiler(lambda _, out: wheel(out)))
        return wheel(out)

    assert compile_it(project, WHOLE, FakeCompiler(second)).wheel is not None


def test_container_gets_the_gpu_the_modules_and_fixed_paths(project: CompileProject) -> None:
    compiler = FakeCompiler(lambda _, out: wheel(out))
    compile_it(project, replace(WHOLE, targets=("sampling",)), compiler)
    [asked] = compiler.asked
    environment = asked["environment"]
    assert environment["FLASHINFER_CUDA_ARCH_LIST"] == "12.1a"
    assert environment["SOURCE_DATE_EPOCH"] == "315619200"
    order = json.loads(asked["command"][-1])
    assert (order["modules"], order["jobs"], order["version"]) == (["sampling"], 4, VERSION)
    assert {mount.place for mount in asked["mounts"]} == {
        "/factory/src", "/factory/build", "/factory/out", "/ccache", "/factory/tools",
    }  # fmt: skip


def test_objects_are_shared_through_the_server_that_the_user_names(
    project: CompileProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = FakeCompiler(lambda *_: 1)

    def asked(remote: str) -> tuple[str, str]:
        monkeypatch.setenv(REMOTE, remote)
        with raises("compile-failed"):
            compile_it(project, WHOLE, compiler)
        run = compiler.asked[-1]
        return run["environment"].get("CCACHE_REMOTE_STORAGE", ""), run["network"]

    assert asked("") == ("", "none")
    http = "http://10.0.0.5:8080/objects|layout=bazel"
    assert asked(http) == (http, "bridge")


@pytest.mark.parametrize(
    ("machine", "missing"),
    [(Machine(4, 2.0), "memory for 1 compiler"), (Machine(4, 64.0, free=7.9), "disk space for the objects")],
)
def test_too_little_memory_or_disk_is_reported_before_any_work(
    project: CompileProject, machine: Machine, missing: str
) -> None:
    compiler = FakeCompiler(lambda _, out: wheel(out), machine)
    with raises("no-room", match=missing):
        compile_it(project, WHOLE, compiler)
    assert compiler.provided == []
    assert not (project.store.root / "compile").exists()


def test_compile_without_a_locked_toolchain_is_refused(project: CompileProject) -> None:
    with raises("no-lock") as caught:
        work_out(project, replace(WHOLE, vllm="nightly"))
    assert "./inv lock --toolchain nightly" in caught.value.fix


def test_wheel_that_no_image_could_run_is_refused(project: CompileProject) -> None:
    bases = project.matrix.bases
    older = project.matrix.model_copy(update={"bases": {**bases, "trixie": bases["bookworm"]}})
    vars(project)["matrix"] = older
    with raises("toolchain-misfit") as caught:
        work_out(project, replace(WHOLE, what="vllm"))
    assert "Python 3.13, and the base has 3.11" in caught.value.why


def test_key_covers_everything_that_affects_the_result(project: CompileProject) -> None:
    base = replace(WHOLE, what="vllm", targets=("_qutlass_C",))

    def key(**changes: Any) -> str:
        return work_out(project, replace(base, **changes)).inputs.key

    keys = {
        key(),
        key(without_mods=("preserve-sm121a",)),
        key(targets=("_C_stable_libtorch",)),
        key(arch="b200"),
    }
    assert len(keys) == 4
    assert key(jobs=7) in keys, "how many compilers run does not matter"


@pytest.fixture
def graft(project: CompileProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """A request for a graft of two extensions, and the published wheel in the store."""
    names = ("_C_stable_libtorch", "_qutlass_C")
    files: dict[str, bytes | str] = {f"vllm/{name}.abi3.so": extension(name, code=fatbin("sm_80")) for name in names}
    tag = wheel_tag(tag="cp38-abi3-manylinux_2_28")
    wheel = make_wheel(tmp_path / "published", "vllm", "0.28.0", files=files, tag=tag)
    published = LockedSource(
        name="vllm", version="0.28.0", file=wheel.name, sha256=file_sha256(wheel), size=wheel.stat().st_size
    )
    stored = project.store.download(published.sha256)
    stored.parent.mkdir(parents=True)
    shutil.copy(wheel, stored)
    monkeypatch.setattr("imagefactory.compile.job.published_wheel", lambda *_: published)
    [request] = requests_of(project, vllm="0.28.0-graft", arch="gb10", only=",".join(names))
    return request


def libraries(out: Path, names: Sequence[str], chip: str = FITTING) -> int:
    for name in names:
        library = extension(name, code=fatbin(chip), search_path="/opt/venv")
        (out / f"{name}.abi3.so").write_bytes(library)
    return 0


def test_grafted_wheel_is_kept_and_cmake_is_told_where_its_sources_are(project: CompileProject, graft: Request) -> None:
    compiler = FakeCompiler(lambda _, out: libraries(out, [*graft.targets, "_C_stable_libtorch_other"]))
    made = compile_it(project, graft, compiler)
    assert compile_it(project, graft, compiler).log is None
    start = f"vllm-0.28.0+graft.gb10.{made.inputs.key[:8]}-cp38-abi3-manylinux_2_41_"
    assert made.wheel.filename.startswith(start)
    [asked] = compiler.asked
    assert asked["environment"]["VLLM_CUTLASS_SRC_DIR"] == "/factory/src/cutlass"
    assert json.loads(asked["command"][-1])["targets"] == list(graft.targets)
    inputs = made.inputs
    assert (inputs.kind, inputs.version) == ("graft", "0.28.0")
    assert inputs.system == {"python": "3.13", "glibc": "2.41", "cuda": "13.0"}
    recorded = read_graft(made.wheel.path, inputs)
    assert [file.path for file in recorded.replaced] == [f"vllm/{name}.abi3.so" for name in graft.targets]


@pytest.mark.parametrize(
    ("count", "chip", "kind", "why"),
    [
        (2, FOREIGN, "audit-failed", "would not run"),
        (2, "sm_100f", "graft-mismatch", "only sm_100f"),
        (1, FITTING, "compile-failed", "_qutlass_C"),
    ],
)
def test_graft_that_lacks_a_library_or_code_for_the_gpu_is_not_kept(
    project: CompileProject, graft: Request, count: int, chip: str, *, kind: str, why: str
) -> None:
    with raises(kind) as caught:
        compile_it(project, graft, FakeCompiler(lambda _, out: libraries(out, graft.targets[:count], chip)))
    assert why in f"{caught.value.what} {caught.value.why}"
    assert list(all_kept(project.store)) == []
