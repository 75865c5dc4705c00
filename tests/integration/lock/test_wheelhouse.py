"""Tests sharing compiled wheels between machines through a real registry."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from imagefactory.lock.audit.libraries import from_layout
from imagefactory.lock.drift import base_made_from, sources_made_from, tools_made_from
from imagefactory.lock.wheelhouse.keep import KeptWheel, keep
from imagefactory.oci.layout import Layout
from imagefactory.project.locks.files import BaseLock, LockedWheel, SourceLock, ToolLock, WheelLock
from imagefactory.store.cache import Store
from imagefactory.store.digests import sha256_of
from tests.fixtures.checkouts import Checkout
from tests.fixtures.compiled import compiled_wheel
from tests.fixtures.small_factory import CELL, SmallFactory
from tests.fixtures.wheelhouse import INPUTS

pytestmark = pytest.mark.engine
CPU = replace(INPUTS, arch_list="", platform=CELL.platform)


class Machine:
    """A checkout with a cache of its own, and the shared registry."""

    def __init__(self, folder: Path, registry: str) -> None:
        self.small = SmallFactory(folder)
        self.store = Store(self.small.cache)
        self.environment = self.small.environment() | {"FACTORY_REGISTRY": registry}
        self.edit('{release: "1.0"}', '{release: "1.0", compile: whole}')
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
        ToolLock(made_from=tools_made_from(matrix)).write(ToolLock.path(locks))

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

    def make_lock(self, *options: str) -> LockedWheel:
        """Run `lock`, and return the only wheel that it locks."""
        self.run("lock", "--target", "tiny", *options)
        [wheel] = self.lock().wheels
        return wheel

    def lock(self) -> WheelLock:
        return WheelLock.read(self.small.project.wheel_lock_path(CELL))

    def labels(self) -> dict[str, str]:
        """Read the labels of the image that was built."""
        layout = self.layout()
        config = json.loads(layout.blob(layout.config_digest()).read_bytes())["config"]
        return dict(config["Labels"])

    def layout(self) -> Layout:
        return Layout(self.small.project.build_folder(CELL))

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
    again = compiler.invoke("wheels.push", "--key", kept.key[:8])
    assert "present" in again.stderr

    wheel = builder.make_lock()
    assert builder.lock().kernels == "compiled"
    assert (wheel.file, wheel.sha256, wheel.size) == (kept.filename, kept.sha256, kept.size)
    assert wheel.compiled == kept.key

    digest = builder.run("build", "--target", "tiny")
    assert builder.labels()["imagefactory.kernels"] == "compiled"
    assert builder.labels()["imagefactory.compiled"] == f"vllm:{kept.key}"
    extracted = tmp_path / "_C.abi3.so"
    [library] = [one for one in from_layout(builder.layout(), builder.store) if one.name == "vllm/_C.abi3.so"]
    library.unpack(extracted)
    assert answer(extracted) == 42

    # With an empty cache, the wheel is found in the registry by the locked sha256.
    builder.forget()
    assert builder.run("build", "--target", "tiny") == digest
    assert builder.run("verify", "--target", "tiny") == digest


def test_pull_fetches_the_locked_wheels(compiler: Machine, builder: Machine, kept: KeptWheel) -> None:
    compiler.run("wheels.push")
    builder.make_lock()
    builder.forget()
    done = builder.invoke("wheels.pull")
    assert "pulled" in done.stderr
    [row] = json.loads(builder.run("wheels.list", "--remote", "--json"))
    assert (row["key"], row["here"], row["shared"], row["locked"]) == (kept.key, True, True, True)
    assert row["inputs"]["sources"] == CPU.sources
    assert "present" in builder.invoke("wheels.pull").stderr


def test_named_or_locked_wheel_is_preferred_to_a_local_one(
    compiler: Machine, builder: Machine, kept: KeptWheel, tmp_path: Path
) -> None:
    compiler.run("wheels.push")
    other = compiled_wheel(tmp_path, answer=43)
    keep(builder.store, replace(CPU, flags=("-O1",)), other)
    assert builder.make_lock("--wheel", kept.key[:8]).compiled == kept.key
    builder.forget()
    keep(builder.store, replace(CPU, flags=("-O1",)), other)
    builder.edit('glibc: "2.36"', 'glibc: "2.37"')
    assert builder.make_lock().compiled == kept.key


@pytest.mark.usefixtures("kept")
def test_push_without_the_wheel_or_a_registry_is_refused(compiler: Machine) -> None:
    done = compiler.invoke("wheels.push", "--key", "none")
    assert done.returncode == 75
    assert "with the key none" in done.stderr
    compiler.edit("registry.example/factory/small", "ghcr.io/OWNER/small")
    del compiler.environment["FACTORY_REGISTRY"]
    done = compiler.invoke("wheels.push")
    assert done.returncode == 78
    assert "FACTORY_REGISTRY" in done.stderr
