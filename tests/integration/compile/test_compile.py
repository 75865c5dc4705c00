"""A real toolchain compiles kernels for GPUs that this machine does not have, and the audit recognizes them."""

import os
import subprocess
from pathlib import Path

import pytest

from imagefactory.compile.container import LABEL, Ended, Mount, run
from imagefactory.compile.toolchain import CompileProject, provide, toolchain_plan
from imagefactory.lock.auditing import audit
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import WheelLock
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.locked_wheels import COMPILER
from tests.fixtures.platforms import PLATFORM
from tests.fixtures.small_factory import RecordingWatcher

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow, pytest.mark.each_run]
SMALL = (*COMPILER, "ninja")
"""What compiling without torch takes: a twentieth of the whole toolchain."""
KERNEL = """\
#include <cuda.h>
namespace { __global__ void twice(float *x) { x[threadIdx.x] *= 2; } }
extern "C" int run(float *x) { twice<<<1, 32>>>(x); CUcontext c; return cuCtxGetCurrent(&c); }
"""
STUB = (
    "PYTHONPATH=/factory/tools python3 -B -c 'import driver_stub, pathlib; "
    'driver_stub.make_stub(pathlib.Path("/factory/build/stubs"))\''
)
COMPILE = (
    "cd /factory/build && "
    "/factory/tools/seeded nvcc -c -Xcompiler -fPIC -gencode arch=compute_{arch},code=sm_{arch} "
    "-o {out}.o kernel.cu && "
    "g++ -shared {out}.o -Wl,--build-id=none,-s -L/usr/local/cuda/lib64 -lcudart -L/factory/build/stubs -lcuda "
    "-o /factory/out/{out}.so"
)


NINJA = """\
rule make
  command = sleep $time && touch $out
  description = $out
build first: make
  time = 0
build second: make first
  time = 3
"""


class SmallToolchain(CompileProject):
    """A checkout whose toolchains have only the wheels that these tests need."""

    def wheel_lock(self, cell: Cell) -> WheelLock:
        lock = super().wheel_lock(cell)
        wheels = tuple(wheel for wheel in lock.wheels if wheel.name in SMALL)
        return lock.model_copy(update={"wheels": wheels})


@pytest.fixture(scope="module")
def toolchain() -> tuple[CompileProject, str]:
    """Assemble the small toolchain and load it; it stays in the daemon, where another process may be using it."""
    project = SmallToolchain(REPOSITORY)
    cell = project.cell("0.32.0", PLATFORM)
    assert len(project.wheel_lock(cell).wheels) == len(SMALL)
    plan = toolchain_plan(project, cell)
    return project, provide(project, plan, RecordingWatcher())


class Workshop:
    """Runs commands in the toolchain, in folders of this test."""

    def __init__(self, project: CompileProject, image: str, folder: Path) -> None:
        self.project, self.image, self.folder = project, image, folder
        self.heard: list[str] = []
        self.interrupt_at = ""
        self.key = f"test-{os.getpid()}"
        for name in ("build", "out", "ccache", "src"):
            (folder / name).mkdir()
        (folder / "build" / "kernel.cu").write_text(KERNEL)

    def run(self, script: str) -> Ended:
        mounts = [Mount(self.folder / name, f"/factory/{name}") for name in ("build", "out", "src")]
        return run(
            self.image,
            ["bash", "-c", script],
            key=self.key,
            mounts=[
                *mounts,
                Mount(self.folder / "ccache", "/ccache"),
                Mount(REPOSITORY / "images" / "compile", "/factory/tools", read_only=True),
            ],
            environment={"CCACHE_DIR": "/ccache", "CCACHE_NOHASHDIR": "1", "HOME": "/factory/build"},
            log=self.folder / "log",
            hear=self.hear,
        )

    def hear(self, line: str) -> None:
        self.heard.append(line)
        if self.interrupt_at and line.startswith(self.interrupt_at):
            raise KeyboardInterrupt


@pytest.fixture
def workshop(toolchain: tuple[CompileProject, str], tmp_path: Path) -> Workshop:
    return Workshop(*toolchain, tmp_path)


def test_kernel_for_12_1a_is_sm_121a_and_reproducible(workshop: Workshop) -> None:
    assert workshop.run(f"{STUB} && {COMPILE.format(arch='121a', out='one')}").status == 0, workshop.heard
    library = workshop.folder / "out" / "one.so"
    [verdict] = audit(workshop.project, str(library), "gb10").verdicts
    assert verdict.passes
    assert verdict.kernels.cubins == {"sm_121a": 1}
    first = library.read_bytes()
    remove = "rm -rf /ccache/* /factory/build/one.o /factory/out/one.so"
    assert workshop.run(f"{remove}; {COMPILE.format(arch='121a', out='one')}").status == 0, workshop.heard
    assert library.read_bytes() == first
    needed = workshop.run("readelf -d /factory/out/one.so | grep NEEDED")
    assert needed.status == 0
    assert any("libcuda.so.1" in line for line in workshop.heard), "the machine provides the driver's library"


def test_kernel_for_another_gpu_is_refused(workshop: Workshop) -> None:
    compiled = COMPILE.format(arch="120a", out="wrong").replace("-L/factory/build/stubs -lcuda", "")
    assert workshop.run(compiled).status == 0, workshop.heard
    verdicts = audit(workshop.project, str(workshop.folder / "out" / "wrong.so"), "gb10").verdicts
    assert not verdicts[0].passes


def test_interrupted_compile_resumes_with_the_next_object(workshop: Workshop) -> None:
    (workshop.folder / "build" / "build.ninja").write_text(NINJA)
    workshop.interrupt_at = "[1/2]"
    with pytest.raises(KeyboardInterrupt):
        workshop.run("ninja -j1 -C /factory/build")
    assert containers(workshop) == b""
    workshop.interrupt_at = ""
    workshop.heard.clear()
    assert workshop.run("ninja -j1 -C /factory/build").status == 0
    assert [line for line in workshop.heard if line.startswith("[")] == ["[1/1] second"]


def containers(workshop: Workshop) -> bytes:
    command = ["docker", "ps", "--all", "--quiet", "--filter", f"label={LABEL}={workshop.key}"]
    return subprocess.run(command, check=True, capture_output=True).stdout


def test_container_is_removed_when_its_compile_ends(workshop: Workshop) -> None:
    ended = workshop.run("echo 'x.cu(1): error: no such thing' && exit 7")
    assert ended == Ended(7, ("x.cu(1): error: no such thing",))
    assert (workshop.folder / "log").read_text() == "x.cu(1): error: no such thing\n"
    assert containers(workshop) == b""


def test_container_of_a_killed_run_is_removed_before_the_next(workshop: Workshop) -> None:
    command = ["docker", "run", "--detach", "--network", "none", "--label", f"{LABEL}={workshop.key}"]
    old = subprocess.run([*command, workshop.image, "sleep", "300"], check=False, capture_output=True)
    assert old.returncode == 0, old.stderr
    assert workshop.run("true").status == 0
    assert containers(workshop) == b""
