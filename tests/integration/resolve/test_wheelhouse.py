"""A compiled wheel's way: kept, pushed to a real registry, adopted by another machine's lock, and in its image."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from isal import igzip

from imagefactory.locks.files import BaseLock, SourceLock, ToolLock, WheelLock
from imagefactory.locks.project import Project
from imagefactory.oci.layout import Layout
from imagefactory.resolve.audit.auditing import cuobjdump
from imagefactory.resolve.drift import base_made_from, sources_made_from, tools_made_from
from imagefactory.resolve.wheelhouse.keep import CompileInputs, KeptWheel, keep
from imagefactory.store.cache import Store
from imagefactory.store.digests import sha256_of
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.compiled import TAG, compiled_wheel
from tests.fixtures.cuda import Nvcc
from tests.fixtures.small_factory import CELL, SmallFactory
from tests.fixtures.wheels import make_wheel

pytestmark = pytest.mark.engine
INPUTS = CompileInputs(
    name="vllm",
    version="1.0",
    sources={"vllm": "a" * 40},
    toolchain="sha256:" + "b" * 64,
    arch_list="",
    platform=CELL.platform,
)


CHIP = """cubins: {accept: [sm_121a, sm_120f], refuse: [sm_120a]}, capability: "12.1", torch_cuda_arch_list: "12.1a"}"""


class Machine:
    """A checkout with a cache of its own, and the shared registry."""

    def __init__(self, folder: Path, registry: str, *, chip: bool = False) -> None:
        self.small = SmallFactory(folder)
        self.store = Store(self.small.cache)
        self.environment = self.small.environment() | {"FACTORY_REGISTRY": registry}
        self.edit('{release: "1.0"}', '{release: "1.0", compile: required}')
        if chip:
            self.edit("base: bookworm}}", f"base: bookworm, {CHIP}}}")
            self._bring_cuobjdump()
        self._answer_the_matrix()

    def edit(self, old: str, new: str) -> None:
        """Change something in the matrix."""
        matrix = self.small.root / "matrix.yaml"
        text = matrix.read_text("utf-8")
        assert old in text
        matrix.write_text(text.replace(old, new), "utf-8")

    def _bring_cuobjdump(self) -> None:
        """Return the checkout the program that looks into kernels, fetched from the index by the real one."""
        real = Project(REPOSITORY)
        tool = real.matrix.tools["cuobjdump"]
        matrix = self.small.root / "matrix.yaml"
        entry = f"tools: {{cuobjdump: {{distribution: {tool.distribution}, version: {tool.version}}}}}\n"
        matrix.write_text(matrix.read_text("utf-8") + entry, "utf-8")
        program = cuobjdump(real)
        here = self.store.root / program.relative_to(real.store.root)
        here.parent.mkdir(parents=True)
        shutil.copy(program, here)

    def _answer_the_matrix(self) -> None:
        """Let every lock but that of the wheels be up to date: locking asks no mirror and no index."""
        project, locks = self.small.project, self.small.root / "locks"
        base = BaseLock.path(locks, "bookworm", CELL.platform)
        made_from = base_made_from(project.matrix, CELL)
        BaseLock.read(base).model_copy(update={"made_from": made_from}).write(base)
        SourceLock(made_from=sources_made_from(project.matrix)).write(SourceLock.path(locks))
        tools = Project(REPOSITORY).tool_lock.model_copy(
            update={"made_from": tools_made_from(project.matrix)}
        )
        tools.write(ToolLock.path(locks))

    def invoke(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.small.command(*arguments),
            cwd=self.small.root,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, *arguments: str) -> str:
        done = self.invoke(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def lock(self) -> WheelLock:
        return WheelLock.read(self.small.project.wheel_lock_path(CELL))

    def forget(self) -> None:
        """Lose everything that was downloaded, kept or built."""
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
    return keep(compiler.store, INPUTS, compiled_wheel(tmp_path))


def library_of(layout: Layout) -> bytes:
    """Read the compiled module out of an image's layers."""
    for digest in layout.layer_digests():
        with (
            igzip.open(layout.blob(digest), "rb") as stream,  # type: ignore[no-untyped-call]
            tarfile.open(fileobj=stream, mode="r|") as layer,
        ):
            for member in layer:
                if member.name.endswith("site-packages/vllm/_C.abi3.so"):
                    content = layer.extractfile(member)
                    assert content is not None
                    return content.read()
    raise AssertionError("the image has no compiled module")


def answer(library: Path) -> int:
    spec = importlib.util.spec_from_file_location("_C", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return int(module.answer())


def test_what_one_machine_compiles_another_adopts_and_builds(
    compiler: Machine, builder: Machine, kept: KeptWheel, repository: str, tmp_path: Path
) -> None:
    tag = f"wheel-vllm-1.0-{kept.key[:16]}"
    assert compiler.run("wheels.push") == f"{repository}:{tag}"
    again = compiler.invoke("wheels.push", "--name", "vllm")
    assert "present" in again.stderr

    builder.run("lock", "--target", "tiny")
    [wheel] = builder.lock().wheels
    assert builder.lock().kernels == "compiled"
    assert (wheel.file, wheel.sha256, wheel.size) == (kept.filename, kept.sha256, kept.size)
    assert wheel.compiled == kept.key

    digest = builder.run("build", "--target", "tiny")
    layout = Layout(builder.small.project.build_folder(CELL))
    labels = json.loads(layout.blob(layout.config_digest()).read_bytes())["config"]["Labels"]
    assert labels["imagefactory.kernels"] == "compiled"
    assert labels["imagefactory.compiled"] == f"vllm:{kept.key}"
    extracted = tmp_path / "_C.abi3.so"
    extracted.write_bytes(library_of(layout))
    assert answer(extracted) == 42

    # From the lock alone: an empty machine finds the wheel in the registry by the sha256.
    builder.forget()
    assert builder.run("build", "--target", "tiny") == digest
    assert builder.run("verify", "--target", "tiny") == digest


@pytest.fixture
def chip_builder(tmp_path: Path, repository: str) -> Machine:
    """A machine that builds for a chip with a policy."""
    return Machine(tmp_path / "chip-builder", repository, chip=True)


def with_kernels(store: Store, folder: Path, library: Path) -> KeptWheel:
    """Keep a vLLM whose only library is this one."""
    files: dict[str, bytes | str] = {"vllm/__init__.py": "", "vllm/_C.abi3.so": library.read_bytes()}
    wheel = make_wheel(folder, "vllm", files=files, tag=TAG)
    return keep(store, replace(INPUTS, arch_list="12.1a"), wheel)


@pytest.mark.network
def test_kernels_for_the_chip_are_adopted_and_the_image_says_so(
    compiler: Machine, chip_builder: Machine, nvcc: Nvcc, tmp_path: Path
) -> None:
    kept = with_kernels(compiler.store, tmp_path, nvcc("sm_121a"))
    compiler.run("wheels.push")
    chip_builder.run("lock", "--target", "tiny")
    chip_builder.run("build", "--target", "tiny")
    layout = Layout(chip_builder.small.project.build_folder(CELL))
    labels = json.loads(layout.blob(layout.config_digest()).read_bytes())["config"]["Labels"]
    assert labels["imagefactory.compiled"] == f"vllm:{kept.key}"
    assert (labels["imagefactory.audit"], labels["imagefactory.audit.summary"]) == ("passed", "1 native")
    # What the image really holds, read out of its layers.
    [verdict] = json.loads(chip_builder.run("audit", str(layout.folder), "--json"))
    assert (verdict["outcome"], verdict["kernels"]["cubins"]) == ("native", {"sm_121a": 1})
    assert chip_builder.invoke("audit", "tiny", "--check").returncode == 0


@pytest.mark.network
@pytest.mark.parametrize(("code", "exit_code"), [("sm_120a", 96), ("sm_90a", 73)])
def test_kernels_for_another_chip_are_not_adopted(
    chip_builder: Machine, nvcc: Nvcc, tmp_path: Path, code: str, exit_code: int
) -> None:
    with_kernels(chip_builder.store, tmp_path, nvcc(code))
    before = chip_builder.lock()
    done = chip_builder.invoke("lock", "--target", "tiny")
    assert done.returncode == exit_code, done.stderr
    assert chip_builder.lock() == before


def test_a_lock_without_the_wheel_names_the_command_that_makes_it(builder: Machine) -> None:
    done = builder.invoke("lock", "--target", "tiny")
    assert done.returncode == 33
    assert "invoke compile --vllm 1.0 --arch cpu --what vllm" in done.stderr
    assert not (builder.small.root / "locks/kernels.toml").exists()


def test_pulling_brings_what_the_locks_name(compiler: Machine, builder: Machine, kept: KeptWheel) -> None:
    compiler.run("wheels.push")
    builder.run("lock", "--target", "tiny")
    builder.forget()
    done = builder.invoke("wheels.pull")
    assert "pulled" in done.stderr
    [row] = json.loads(builder.run("wheels.list", "--remote", "--json"))
    assert (row["key"], row["here"], row["shared"], row["locked"]) == (kept.key, True, True, True)
    assert row["inputs"]["sources"] == {"vllm": "a" * 40}
    assert "present" in builder.invoke("wheels.pull").stderr


def test_a_wheel_that_is_named_or_locked_is_fetched_though_another_one_is_here(
    compiler: Machine, builder: Machine, kept: KeptWheel, tmp_path: Path
) -> None:
    compiler.run("wheels.push")
    other = compiled_wheel(tmp_path, answer=43)
    keep(builder.store, replace(INPUTS, flags=("-O1",)), other)
    builder.run("lock", "--target", "tiny", "--wheel", kept.key[:8])
    assert builder.lock().wheels[0].compiled == kept.key
    builder.forget()
    keep(builder.store, replace(INPUTS, flags=("-O1",)), other)
    builder.edit('glibc: "2.36"', 'glibc: "2.37"')
    builder.run("lock", "--target", "tiny")
    assert builder.lock().wheels[0].compiled == kept.key


def test_another_result_of_the_same_compile_never_replaces_the_first(
    compiler: Machine, builder: Machine, kept: KeptWheel, tmp_path: Path
) -> None:
    compiler.run("wheels.push")
    other = keep(builder.store, INPUTS, compiled_wheel(tmp_path, answer=43))
    assert other.key == kept.key
    refused = builder.invoke("wheels.push")
    assert refused.returncode == 77
    assert kept.sha256[:16] in refused.stderr
    shutil.rmtree(other.path.parent)
    builder.run("wheels.pull", "--key", kept.key[:8])
    builder.run("lock", "--target", "tiny")
    assert builder.lock().wheels[0].sha256 == kept.sha256


def test_the_locked_bytes_count_and_not_what_the_same_inputs_gave_here(
    compiler: Machine, builder: Machine, kept: KeptWheel, tmp_path: Path
) -> None:
    compiler.run("wheels.push")
    builder.run("lock", "--target", "tiny")
    builder.forget()
    keep(builder.store, INPUTS, compiled_wheel(tmp_path, answer=43))
    done = builder.invoke("build", "--target", "tiny")
    assert done.returncode == 77
    assert kept.sha256[:16] in done.stderr


def test_the_registry_that_nobody_named_is_asked_for(compiler: Machine, kept: KeptWheel) -> None:
    del kept
    matrix = compiler.small.root / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("registry.example/factory/small", "ghcr.io/OWNER/small"))
    del compiler.environment["FACTORY_REGISTRY"]
    done = compiler.invoke("wheels.push")
    assert done.returncode == 78
    assert "FACTORY_REGISTRY" in done.stderr


@pytest.mark.parametrize("command", ["wheels.push", "wheels.pull"])
def test_a_wheel_that_is_not_there_is_named(builder: Machine, command: str) -> None:
    done = builder.invoke(command, "--name", "vllm")
    assert done.returncode == 75
    assert "of vllm" in done.stderr
