"""NVIDIA's own compiler and dumper, both from their locked wheels: what is compiled is what the audit finds."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest
import requests

from imagefactory.audit.cubins import Kernels, read_kernels
from imagefactory.audit.policy import judge
from imagefactory.audit.run import audit, cuobjdump, refuse_failing
from imagefactory.cells import Cell
from imagefactory.downloads import fetch
from imagefactory.errors.kernels import AuditFailedError
from imagefactory.project import Project
from imagefactory.sources import Sources
from imagefactory.targets import host_machine
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.wheels import make_wheel

pytestmark = pytest.mark.network

COMPILER = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
LOCKED = {
    "amd64": Cell("gemma4-31b", "0.32.0", "rtx5090", "linux/amd64"),
    "arm64": Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64"),
}
SOURCE = """\
__global__ void twice(float *x) { x[threadIdx.x] *= 2; }
extern "C" const char *names() { return "%s"; }
"""


@pytest.fixture(scope="module")
def project() -> Project:
    return Project(REPOSITORY)


@pytest.fixture(scope="module")
def nvcc(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the compiler that images carry for kernels made at run time."""
    cell, folder = LOCKED[host_machine()], tmp_path_factory.mktemp("cuda")
    sources = Sources(project, [cell])
    with requests.Session() as session:
        for wheel in project.wheel_lock(cell).wheels:
            if wheel.name in COMPILER:
                found = fetch(sources.tool(wheel), project.store, session, lambda _: None)
                with ZipFile(found) as archive:
                    archive.extractall(folder)
    [program] = folder.glob("nvidia/*/bin/nvcc")
    for path in program.parents[1].rglob("*"):
        if path.is_file() and "bin" in path.parts[-3:]:
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return program


class Compiled:
    """Compiles the same kernel for any chips."""

    def __init__(self, nvcc: Path, folder: Path) -> None:
        self.nvcc = nvcc
        self.folder = folder

    def __call__(self, *code: str, word: str = "plain") -> Path:
        source, library = self.folder / "kernel.cu", self.folder / "_C.abi3.so"
        source.write_text(SOURCE % word)
        flags = [f"-gencode=arch=compute_{arch},code={kind}_{arch}" for kind, arch in map(self._split, code)]
        line: list[str | Path] = [self.nvcc, "-shared", "-Xcompiler", "-fPIC", "-cudart", "none", *flags]
        line += [source, "-o", library]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return library

    @staticmethod
    def _split(code: str) -> tuple[str, str]:
        kind, _, arch = code.partition("_")
        return kind, arch


@pytest.fixture
def compiled(nvcc: Path, tmp_path: Path) -> Compiled:
    return Compiled(nvcc, tmp_path)


def test_the_dump_tells_apart_what_the_list_does_not(project: Project, compiled: Compiled) -> None:
    tool = cuobjdump(project)
    library = compiled("sm_121a", "sm_120f", "sm_100", "sm_90a", "compute_80")
    assert read_kernels(library, tool) == Kernels(
        cubins={"sm_100": 1, "sm_120f": 1, "sm_121a": 1, "sm_90a": 1}, ptx={"sm_80": 1}
    )
    # This is why the audit does not read the shorter list.
    listed = subprocess.run([tool, "--list-elf", library], capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == 4
    assert "sm_120f" not in listed


def test_a_library_without_kernels_is_no_failure(project: Project, tmp_path: Path) -> None:
    source, library = tmp_path / "c.c", tmp_path / "c.so"
    source.write_text("int one(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    assert read_kernels(library, cuobjdump(project)) == Kernels()


@pytest.mark.parametrize(
    ("code", "word", "outcome"),
    [
        (["sm_121a"], "nvfp4", "native"),
        (["sm_120f"], "nvfp4", "native"),
        (["sm_120"], "plain", "native"),
        (["sm_120"], "nvfp4", "fails"),
        (["sm_120a"], "plain", "fails"),
        (["sm_120", "sm_120a"], "plain", "fails"),
        (["sm_90a"], "plain", "other chips"),
        (["sm_90a", "compute_80"], "plain", "jit"),
    ],
)
def test_what_was_compiled_decides_how_it_runs_on_a_spark(
    project: Project, compiled: Compiled, code: list[str], word: str, outcome: str
) -> None:
    arch = project.matrix.archs["gb10"]
    assert arch.cubins is not None
    assert arch.capability is not None
    kernels = read_kernels(compiled(*code, word=word), cuobjdump(project))
    verdict = judge("vllm/_C.abi3.so", kernels, arch.cubins, arch.capability)
    assert verdict is not None
    assert verdict.outcome == outcome


def test_a_wheel_is_looked_into_where_it_lies(project: Project, compiled: Compiled, tmp_path: Path) -> None:
    library = compiled("sm_120a")
    wheel = make_wheel(
        tmp_path, "vllm", tag="cp38-abi3-linux_aarch64", files={"vllm/_C.abi3.so": library.read_bytes()}
    )
    verdicts = audit(project, str(wheel), "gb10")
    with pytest.raises(AuditFailedError):
        refuse_failing(wheel.name, verdicts)
    assert [verdict.outcome for verdict in audit(project, str(wheel), "rtx5090")] == ["native"]
