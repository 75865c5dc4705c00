"""Tests sharing compiled wheels between machines through a real registry."""

import importlib.util
import json
import shutil
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from imagefactory.check.smoke.contents import Contents
from imagefactory.lock.drift import base_made_from, sources_made_from, tools_made_from
from imagefactory.lock.wheelhouse.keep import KeptWheel, keep
from imagefactory.oci.format import VENV
from imagefactory.oci.layout import Layout
from imagefactory.project.locks.files import BaseLock, LockedWheel, SourceLock, ToolLock, WheelLock
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from imagefactory.store.digests import sha256_of
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.failures import refused
from tests.fixtures.fake_github import REPOSITORY as GITHUB
from tests.fixtures.fake_github import TOKEN, FakeGitHub
from tests.fixtures.locked_wheels import Nvcc
from tests.fixtures.platforms import wheel_tag
from tests.fixtures.small_factory import CELL, SmallFactory
from tests.fixtures.wheelhouse import INPUTS
from tests.fixtures.wheels import make_wheel

pytestmark = pytest.mark.engine
CPU = replace(INPUTS, arch_list="", platform=CELL.platform)
CHIP = """cubins: {accept: [sm_121a, sm_120f], refuse: [sm_120a]}, capability: "12.1", torch_cuda_arch_list: "12.1a"}"""

SOURCE = """\
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(ANSWER); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, NULL}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", NULL, -1, methods};
PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&module); }
"""
TAG = wheel_tag(tag="cp311-abi3-linux")


def compiled_wheel(folder: Path, *, answer: int = 42) -> Path:
    """Make a wheel called vllm with an extension whose only function returns the answer."""
    made = folder / f"made-{answer}"
    made.mkdir()
    source, library = made / "_C.c", made / "_C.abi3.so"
    source.write_text(SOURCE)
    options = ("-shared", "-fPIC", "-O2", f"-DANSWER={answer}", f"-I{sysconfig.get_path('include')}")
    subprocess.run(["cc", *options, source, "-o", library], check=True, capture_output=True)
    return vllm_with(library, made)


def vllm_with(library: Path, folder: Path) -> Path:
    """Make a wheel called vllm whose only library is this one."""
    files: dict[str, bytes | str] = {"vllm/__init__.py": "", "vllm/_C.abi3.so": library.read_bytes()}
    return make_wheel(folder, "vllm", files=files, tag=TAG)


class Machine:
    """A checkout with a cache of its own, and the shared registry."""

    def __init__(self, folder: Path, registry: str, *, chip: bool = False) -> None:
        self.small = SmallFactory(folder)
        self.store = Store(self.small.cache)
        self.registry = {"FACTORY_REGISTRY": registry}
        self.edit('{release: "1.0"}', '{release: "1.0", compile: whole}')
        if chip:
            self.edit("base: bookworm}}", f"base: bookworm, {CHIP}}}")
        self._update_locks()

    def edit(self, old: str, new: str) -> None:
        """Replace a text that matrix.yaml contains once."""
        Checkout(self.small.root).edit_matrix(old, new)

    def _update_locks(self) -> None:
        """Make every lock but that of the wheels match the matrix, so that locking needs no mirror and no index."""
        matrix, locks = self.small.project.matrix, self.small.root / "locks"
        base = BaseLock.path(locks, "bookworm", CELL.platform)
        BaseLock.read(base).model_copy(update={"made_from": base_made_from(matrix, CELL)}).write(base)
        SourceLock(made_from=sources_made_from(matrix)).write(SourceLock.path(locks))
        tools = Project(REPOSITORY).tool_lock.model_copy(update={"made_from": tools_made_from(matrix)})
        tools.write(ToolLock.path(locks))

    def invoke(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.small.invoke(*arguments, env=self.registry)

    def run(self, *arguments: str) -> str:
        done = self.invoke(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def make_lock(self) -> LockedWheel:
        """Run `lock`, and return the only wheel that it locks."""
        self.run("lock", "--target", "tiny")
        [wheel] = WheelLock.read(self.small.project.wheel_lock_path(CELL)).wheels
        return wheel

    def labels(self) -> dict[str, str]:
        """Read the labels of the image that was built."""
        layout = self.layout()
        config = json.loads(layout.blob(layout.config_digest()).read_bytes())["config"]
        return dict(config["Labels"])

    def layout(self) -> Layout:
        return Layout(self.small.project.build_folder(CELL))

    def library(self, folder: Path) -> Path:
        """Copy the compiled library out of the image that was built."""
        contents = Contents(self.layout(), self.store)
        contents.copy(f"{VENV}/lib/python3.11/site-packages/vllm/_C.abi3.so", folder / "_C.abi3.so")
        return folder / "_C.abi3.so"

    def forget(self) -> None:
        """Delete everything that was downloaded, kept or built."""
        shutil.rmtree(self.small.cache)


@pytest.fixture
def repository(registry: str, tmp_path: Path) -> str:
    return f"{registry}/{sha256_of(str(tmp_path).encode())[:12]}/small"


@pytest.fixture
def compiler(tmp_path: Path, repository: str) -> Machine:
    """The machine that compiles."""
    return Machine(tmp_path / "compiler", repository)


@pytest.fixture
def builder(tmp_path: Path, repository: str) -> Machine:
    """Another machine that only builds."""
    return Machine(tmp_path / "builder", repository)


@pytest.fixture
def kept(compiler: Machine, tmp_path: Path) -> KeptWheel:
    return keep(compiler.store, CPU, compiled_wheel(tmp_path))


def answer(library: Path) -> int:
    spec = importlib.util.spec_from_file_location("_C", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return int(module.answer())


def test_wheel_compiled_on_one_machine_is_adopted_and_built_on_another(
    compiler: Machine, builder: Machine, kept: KeptWheel, repository: str, tmp_path: Path
) -> None:
    tag = f"wheel-vllm-1.0-{kept.key[:16]}"
    assert compiler.run("wheels.push") == f"{repository}:{tag}"
    assert "present" in compiler.invoke("wheels.push").stderr

    assert builder.make_lock().compiled == kept.key
    [row] = json.loads(builder.run("wheels.list", "--remote", "--json"))
    assert (row["key"], row["here"], row["shared"], row["locked"]) == (kept.key, True, True, True)
    assert row["inputs"]["sources"] == CPU.sources

    digest = builder.run("build", "--target", "tiny")
    assert builder.labels()["imagefactory.compiled"] == f"vllm:{kept.key}"
    assert answer(builder.library(tmp_path)) == 42

    # With an empty cache, the wheel is found in the registry by the locked sha256.
    builder.forget()
    assert builder.run("build", "--target", "tiny") == digest
    assert builder.run("verify", "--target", "tiny") == digest


def test_a_night_proposes_the_lock_that_a_maintainer_would_make(
    compiler: Machine, builder: Machine, kept: KeptWheel, fake_github: FakeGitHub
) -> None:
    compiler.run("wheels.push")
    fake_github.client().commit("main", {"README.md": ""}, "one")
    github = {"FACTORY_GITHUB_API": fake_github.url, "GITHUB_REPOSITORY": GITHUB, "GITHUB_TOKEN": TOKEN}
    done = builder.small.invoke("ci.lock", "--target", "tiny", env=builder.registry | github)
    assert done.returncode == 0, done.stderr
    proposed = fake_github.files("compiled")
    path = builder.small.project.wheel_lock_path(CELL).relative_to(builder.small.root).as_posix()
    assert f'compiled = "{kept.key}"' in proposed[path]
    compiler.make_lock()
    compiler.run("build", "--target", "tiny")
    for name in (path, "locks/layers.toml"):
        assert proposed[name] == (compiler.small.root / name).read_text()
    assert "nothing new" in builder.small.invoke("ci.lock", "--target", "tiny", env=builder.registry | github).stdout


@pytest.mark.usefixtures("kept")
def test_a_fork_gets_a_lock_of_its_own_compile_and_nothing_is_built_before(
    compiler: Machine, builder: Machine, fake_github: FakeGitHub, tmp_path: Path
) -> None:
    theirs = compiler.make_lock()
    compiler.run("build", "--target", "tiny")
    # The fork has the locks of upstream, and its own registry.
    shutil.copytree(compiler.small.root / "locks", builder.small.root / "locks", dirs_exist_ok=True)
    shutil.rmtree(compiler.small.cache)
    night = json.loads(builder.run("ci.plan", "--first", "--target", "tiny", "--json"))
    assert (night["works"], night["broken"]) == ([], [])
    assert [trouble["what"] for trouble in night["waiting"]] == ["It waits for the compile of vllm (1.0, cpu)."]
    assert [job["what"] for job in night["compiles"]] == ["vllm"]
    for command in ("build", "push"):
        done = builder.invoke(command, "--target", "tiny")
        assert refused(done, "compile-needed")
        assert "./inv compile --vllm 1.0 --arch cpu --what vllm" in done.stderr
    assert not [path for path in builder.store.root.glob("downloads/*/*") if path.is_file()], "also no Debian package"
    # Its own compile of the same inputs gives other bytes.
    ours = keep(compiler.store, CPU, compiled_wheel(tmp_path, answer=43))
    assert (ours.key, ours.sha256 == theirs.sha256) == (theirs.compiled, False)
    compiler.run("wheels.push")
    night = json.loads(builder.run("ci.plan", "--target", "tiny", "--json"))
    assert (night["compiles"], night["waiting"], len(night["unlocked"])) == ([], [], 1)
    fake_github.client().commit("main", {"README.md": ""}, "one")
    github = {"FACTORY_GITHUB_API": fake_github.url, "GITHUB_REPOSITORY": GITHUB, "GITHUB_TOKEN": TOKEN}
    done = builder.small.invoke("ci.lock", "--target", "tiny", env=builder.registry | github)
    assert done.returncode == 0, done.stderr
    path = builder.small.project.wheel_lock_path(CELL).relative_to(builder.small.root).as_posix()
    assert f'sha256 = "{ours.sha256}"' in fake_github.files("compiled")[path]
    builder.run("build", "--target", "tiny")
    assert answer(builder.library(tmp_path)) == 43


@pytest.mark.network
def test_wheel_with_kernels_for_the_gpu_is_adopted(
    compiler: Machine, repository: str, nvcc: Nvcc, tmp_path: Path
) -> None:
    chip_builder = Machine(tmp_path / "chip-builder", repository, chip=True)
    wheel = vllm_with(nvcc("sm_121a"), tmp_path / "wheel")
    kept = keep(compiler.store, replace(CPU, arch_list="12.1a"), wheel)
    compiler.run("wheels.push")
    chip_builder.make_lock()
    chip_builder.run("build", "--target", "tiny")
    labels = chip_builder.labels()
    assert labels["imagefactory.compiled"] == f"vllm:{kept.key}"
    assert (labels["imagefactory.audit"], labels["imagefactory.audit.summary"]) == ("passed", "1 native")
    # The layers of the image really contain these kernels.
    [verdict] = json.loads(chip_builder.run("audit", str(chip_builder.library(tmp_path)), "--json"))
    assert (verdict["outcome"], verdict["kernels"]["cubins"]) == ("native", {"sm_121a": 1})


def test_build_refuses_a_local_wheel_that_is_not_the_locked_one(
    compiler: Machine, builder: Machine, kept: KeptWheel, tmp_path: Path
) -> None:
    compiler.run("wheels.push")
    builder.make_lock()
    builder.forget()
    keep(builder.store, CPU, compiled_wheel(tmp_path, answer=43))
    done = builder.invoke("build", "--target", "tiny")
    assert refused(done, "bad-wheel-artifact")
    assert kept.sha256[:16] in done.stderr


def test_push_without_a_wheel_or_a_registry_is_refused(compiler: Machine, tmp_path: Path) -> None:
    assert refused(compiler.invoke("wheels.push"), "wheel-not-kept")
    keep(compiler.store, CPU, compiled_wheel(tmp_path))
    compiler.edit("registry.example/factory/small", "ghcr.io/OWNER/small")
    compiler.registry.clear()
    done = compiler.invoke("wheels.push")
    assert refused(done, "no-registry")
    assert "FACTORY_REGISTRY" in done.stderr
