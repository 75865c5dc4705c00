"""The programs of the toolchain's container that also run outside of it."""

import importlib
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from imagefactory.lock.wheelhouse.keep import refuse_misfit
from tests.fixtures.checkouts import REPOSITORY

FOLDER = REPOSITORY / "images" / "compile"


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported("flashinfer_build", monkeypatch)


JOB = {"version": "0.7.0.post1", "platform_tag": "manylinux_2_36_x86_64", "archs": "12.0a 12.1a"}


def make(program: ModuleType, out: Path, names: list[str]) -> Path:
    out.mkdir()
    libraries = {name: out / f"{name}.so" for name in names}
    for name, path in libraries.items():
        path.write_text(f"code of {name}")
    vars(program)["OUT"] = out
    path = program.write_wheel(JOB, libraries)
    assert isinstance(path, Path)
    return path


def test_wheel_is_accepted_by_the_wheelhouse_and_read_by_flashinfer(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make(program, tmp_path / "out", ["page", "norm"])
    refuse_misfit("flashinfer-jit-cache", "0.7.0.post1", "linux/amd64", wheel)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "flashinfer_jit_cache", raising=False)
    flashinfer_jit_cache = importlib.import_module("flashinfer_jit_cache")
    [provider] = flashinfer_jit_cache.get_jit_cache_providers()
    assert provider.version == flashinfer_jit_cache.__version__ == "0.7.0.post1"
    assert provider.cuda_architectures == {"sm120a", "sm121a"}
    assert provider.modules == {"norm", "page"}
    assert Path(flashinfer_jit_cache.get_jit_cache_dir(), "norm", "norm.so").read_bytes() == b"code of norm"


def test_same_modules_make_the_same_wheel(program: ModuleType, tmp_path: Path) -> None:
    one, two = make(program, tmp_path / "one", ["a", "b"]), make(program, tmp_path / "two", ["b", "a"])
    assert one.read_bytes() == two.read_bytes()


def test_flashinfer_is_imported_without_what_asks_the_driver(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vars(program)["SOURCE"] = tmp_path
    for folder in ("3rdparty", "flashinfer"):
        (tmp_path / folder).mkdir()
    (tmp_path / "flashinfer" / "__init__.py").write_text("import einops")
    (tmp_path / "flashinfer" / "aot.py").write_text("import pynvml")
    for name in ("flashinfer", "flashinfer.aot", "pynvml"):
        monkeypatch.setitem(sys.modules, name, None)  # what the test changes is undone
        monkeypatch.delitem(sys.modules, name)
    program.import_flashinfer()
    assert importlib.import_module("flashinfer.aot").__file__ == str(tmp_path / "flashinfer" / "aot.py")


def test_stub_has_every_name_of_the_driver(program: ModuleType) -> None:  # noqa: ARG001 - it sets the path
    driver_stub = importlib.import_module("driver_stub")
    header = """
    #define cuMemAlloc cuMemAlloc_v2
    #define cuStreamSync __CUDA_API_PTSZ(cuStreamSync)
    CUresult CUDAAPI cuInit(unsigned int Flags);
    CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
    typedef struct CUctx_st *CUcontext;
    """
    assert driver_stub.names(header) == ["cuInit", "cuMemAlloc", "cuMemAlloc_v2", "cuStreamSync"]


def test_launcher_seeds_each_output_with_its_name(tmp_path: Path) -> None:
    fake = tmp_path / "ccache"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    dependencies = "--generate-dependencies-with-compile"  # which ccache knows as -MD only
    command = [str(FOLDER / "seeded"), "nvcc", dependencies, "-c", "a b.cu", "-o", "dir/a b.o"]
    said = subprocess.run(command, env={"PATH": path}, check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == ["nvcc", "-MD", "-c", "a b.cu", "-o", "dir/a b.o", "-frandom-seed=dir/a b.o"]


def test_targets_and_objects_of_cmake_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of a target may be chosen by the names of their files."""
    build = imported("vllm_build", monkeypatch)
    objects = [f"CMakeFiles/{name}.cu.o" for name in ("_a_C.dir/csrc/x_128", "_a_C.dir/x_256", "_b_C.dir/x_128")]
    rules = "rule compile\n  command = touch $out\nrule link\n  command = cat $in >$out\n"
    steps = "".join(f"build {name}: compile\n" for name in objects)
    linked = f"build _a_C.abi3.so: link {' '.join(objects)}\nbuild _a_C: phony _a_C.abi3.so\nbuild csrc/all: phony\n"
    (tmp_path / "build.ninja").write_text(rules + steps + linked)
    # Where the ninja of the toolchain's version is.
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"), prepend=os.pathsep)
    assert build.known_targets(tmp_path) == (["_a_C"], sorted(objects))
    assert build.matching("_a_C/*_128*", objects) == [objects[0]]
    assert build.matching("_a_C/*", objects) == objects[:2]
    assert build.matching("_a/*", objects) == []
