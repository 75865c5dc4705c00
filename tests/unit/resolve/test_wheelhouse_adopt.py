"""Locks that adopt compiled wheels: which one, for which chips, and that the lock's word counts afterwards."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from imagefactory.build import inputs as sources
from imagefactory.compile.toolchain_locks import check_all_locks
from imagefactory.errors.kernels import AuditFailedError
from imagefactory.errors.locks import CompileNeededError
from imagefactory.errors.store import DownloadError
from imagefactory.errors.wheelhouse import (
    DamagedWheelError,
    SeveralWheelsError,
    WheelNotKeptError,
    WrongWheelError,
)
from imagefactory.locks.files import KernelLock, LockedWheel, WheelLock
from imagefactory.locks.kernels import GpuCode
from imagefactory.locks.project import Project
from imagefactory.matrix.targets import select
from imagefactory.mods.choose import source_mods
from imagefactory.plan.make import make_plan
from imagefactory.resolve.audit import auditing
from imagefactory.resolve.making import LockResult, make_locks
from imagefactory.resolve.wheelhouse.keep import CompileInputs, KeptWheel, keep
from imagefactory.resolve.wheelhouse.share import compiled_locations
from tests.fixtures.checkouts import Checkout
from tests.fixtures.mods import edit, has, manifest, write_mod
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory, make_wheel

TARGET = "big@1.0/gpu"
LOCK = "1.0/gpu-linux-arm64.toml"
NATIVE = GpuCode(cubins={"sm_121a": 3})
INPUTS = CompileInputs(
    name="vllm",
    version="1.0",
    sources={"vllm": "a" * 64},
    toolchain="sha256:" + "b" * 64,
    arch_list="12.1a",
    platform="linux/arm64",
)


class Wheelhouse:
    """A checkout whose version 1.0 has to be compiled, an index for the rest, and kernels as a test wants them."""

    def __init__(self, checkout: Checkout, folder: Path) -> None:
        self.checkout = checkout
        self.folder = folder
        self.kernels = NATIVE
        self.said: list[str] = []

    @property
    def project(self) -> Project:
        return Project(self.checkout.root)

    def keep(self, inputs: CompileInputs = INPUTS, *, content: str = "") -> KeptWheel:
        wheel = make_wheel(
            self.folder / inputs.key[:8],
            inputs.name,
            inputs.version,
            requires=["torch==1.0"] if inputs.name == "vllm" else [],
            tag="cp38-abi3-linux_aarch64",
            files={f"{inputs.name.replace('-', '_')}/_C.abi3.so": content or inputs.key},
        )
        return keep(self.project.store, inputs, wheel)

    def mods(self) -> tuple[str, ...]:
        """Digest the mods that a compile in this checkout would apply to the sources."""
        [(mod, variant)] = source_mods(self.project, "1.0", "gpu", ())
        return (mod.digest(variant),)

    def lock(
        self, *wheels: str, target: str = TARGET, upgrade: tuple[str, ...] = ()
    ) -> dict[str, LockResult]:
        project = self.project
        cells = select(project.matrix, [target])
        done = make_locks(project, cells, upgrade=upgrade, wheels=wheels, say=self.said.append)
        return {str(result.path.relative_to(self.checkout.locks)): result for result in done}

    def locked(self, name: str = "vllm", lock: str = LOCK) -> LockedWheel:
        wheels = WheelLock.read(self.checkout.locks / lock).wheels
        return next(wheel for wheel in wheels if wheel.name == name)


@pytest.fixture
def wheelhouse(
    locked_checkout: Checkout,
    simple_index: SimpleIndex,
    wheel_factory: WheelFactory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Wheelhouse:
    simple_index.add(
        wheel_factory("vllm", "1.0", requires=["torch==1.0", "never-built"]),
        wheel_factory("vllm", "2.0", requires=["flashinfer-python==0.7.0"]),
        wheel_factory("flashinfer-python", "0.7.0"),
        wheel_factory("torch", "1.0", tag="cp311-cp311-manylinux_2_28_aarch64"),
        wheel_factory("torch", "1.0+cu130", tag="cp311-cp311-manylinux_2_28_aarch64"),
    )
    monkeypatch.setenv("PIP_INDEX_URL", simple_index.url)
    change = edit("CMakeLists.txt", "set(ARCHS 1)", replace="set(ARCHS 2)")
    mod = manifest("m", change, checks=[has("CMakeLists.txt", "2")], variant={"stage": "source"})
    write_mod(locked_checkout.root / "mods", mod)
    made = Wheelhouse(locked_checkout, tmp_path / "compiled")
    monkeypatch.setattr(auditing, "cuobjdump", lambda _: Path("cuobjdump"))
    monkeypatch.setattr(auditing, "read_kernels", lambda *_: made.kernels)
    return made


def test_a_lock_names_the_compiled_wheel_and_takes_its_requirements(wheelhouse: Wheelhouse) -> None:
    kept = wheelhouse.keep()
    assert wheelhouse.lock()[LOCK].changed
    wheel = wheelhouse.locked()
    assert (wheel.file, wheel.sha256, wheel.size) == (kept.filename, kept.sha256, kept.size)
    assert (wheel.compiled, wheel.version, wheel.needed_by) == (kept.key, "1.0", ("matrix.yaml",))
    lock = WheelLock.read(wheelhouse.checkout.locks / LOCK)
    assert lock.kernels == "compiled"
    # The published wheel of that version asks for more; it was not looked at.
    assert {wheel.name for wheel in lock.wheels} == {"vllm", "torch"}
    assert f'compiled = "{kept.key}"' in (wheelhouse.checkout.locks / LOCK).read_text()
    check_all_locks(wheelhouse.project)


def test_a_version_that_needs_another_torch_gets_it_on_machines_with_a_gpu(wheelhouse: Wheelhouse) -> None:
    wheelhouse.keep()
    wheelhouse.lock()
    assert wheelhouse.locked("torch").version == "1.0+cu130"
    assert wheelhouse.locked("torch").compiled is None


def test_the_image_says_that_its_kernels_are_compiled_and_from_what(wheelhouse: Wheelhouse) -> None:
    kept = wheelhouse.keep()
    wheelhouse.lock()
    project = wheelhouse.project
    [cell] = select(project.matrix, [TARGET])
    plan = make_plan(project, cell)
    assert plan.kernels == plan.config.labels["imagefactory.kernels"] == "compiled"
    assert plan.config.labels["imagefactory.compiled"] == f"vllm:{kept.key}"
    assert plan.config.labels["imagefactory.audit"] == "passed"
    record = KernelLock.read(wheelhouse.checkout.locks / "kernels.toml").find(kept.sha256)
    assert record is not None
    assert record.libraries[0].cubins == {"sm_121a": 3}


def test_what_is_on_the_disk_later_does_not_matter(wheelhouse: Wheelhouse) -> None:
    kept = wheelhouse.keep()
    wheelhouse.lock()
    before = (wheelhouse.checkout.locks / LOCK).read_bytes()
    wheelhouse.keep(replace(INPUTS, toolchain="sha256:newer"))
    shutil.rmtree(kept.path.parent)
    assert not wheelhouse.lock()[LOCK].changed
    assert (wheelhouse.checkout.locks / LOCK).read_bytes() == before


def test_without_the_wheel_the_command_that_makes_it_is_named(wheelhouse: Wheelhouse) -> None:
    with pytest.raises(CompileNeededError) as caught:
        wheelhouse.lock()
    assert "`invoke compile --vllm 1.0 --arch gpu --what vllm`" in caught.value.fix
    assert "invoke lock --target big@1.0/gpu" in caught.value.fix
    assert not (wheelhouse.checkout.locks / LOCK).exists()


@pytest.mark.parametrize(
    "other",
    [
        {"arch_list": "12.0a"},
        {"arch_list": "12.1a 12.0a"},
        {"version": "2.0"},
        {"name": "flashinfer-jit-cache"},
    ],
)
def test_a_wheel_for_something_else_is_not_adopted(wheelhouse: Wheelhouse, other: dict[str, str]) -> None:
    wheelhouse.keep(replace(INPUTS, **other))  # type: ignore[arg-type]
    with pytest.raises(CompileNeededError):
        wheelhouse.lock()


def test_what_is_kept_for_other_chips_is_mentioned(wheelhouse: Wheelhouse) -> None:
    wheelhouse.keep(replace(INPUTS, arch_list="12.0a"))
    with pytest.raises(CompileNeededError) as caught:
        wheelhouse.lock()
    assert "1.0 for 12.0a" in caught.value.why


def test_a_compiled_wheel_whose_kernels_do_not_load_is_refused(wheelhouse: Wheelhouse) -> None:
    wheelhouse.keep()
    wheelhouse.kernels = GpuCode(cubins={"sm_120a": 2})
    with pytest.raises(AuditFailedError, match="would not run"):
        wheelhouse.lock()
    assert not (wheelhouse.checkout.locks / LOCK).exists()


@pytest.mark.parametrize("kernels", [GpuCode(), GpuCode(cubins={"sm_90a": 1}), GpuCode(ptx={"sm_80": 1})])
def test_a_compiled_wheel_without_kernels_for_the_chip_is_refused(
    wheelhouse: Wheelhouse, kernels: GpuCode
) -> None:
    wheelhouse.keep()
    wheelhouse.kernels = kernels
    with pytest.raises(WrongWheelError, match="no kernels for gpu"):
        wheelhouse.lock()
    assert not (wheelhouse.checkout.locks / LOCK).exists()


def test_a_damaged_wheel_is_refused(wheelhouse: Wheelhouse) -> None:
    kept = wheelhouse.keep()
    kept.path.write_bytes(bytes(kept.size))
    with pytest.raises(DamagedWheelError):
        wheelhouse.lock()


def test_mods_can_read_the_compiled_wheel_before_anything_is_built(
    wheelhouse: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = wheelhouse.keep()
    wheelhouse.lock()
    project = wheelhouse.project
    [cell] = select(project.matrix, [TARGET])
    seen: list[bytes] = []

    def read_it(project: Project, *_: object) -> None:
        seen.append(project.store.download(kept.sha256).read_bytes())

    monkeypatch.setattr(sources, "refuse_unfit_mods", read_it)
    sources.LayerInputs(project, [cell]).refuse_unfit_mods([cell])
    assert seen == [kept.path.read_bytes()]


def test_a_locked_wheel_that_is_nowhere_is_named_with_what_to_do(wheelhouse: Wheelhouse) -> None:
    kept = wheelhouse.keep()
    wheelhouse.lock()
    shutil.rmtree(kept.path.parent)
    project = wheelhouse.project
    [cell] = select(project.matrix, [TARGET])
    with pytest.raises(DownloadError) as caught:
        sources.LayerInputs(project, [cell]).refuse_unfit_mods([cell])
    assert caught.value.what.startswith(kept.filename)
    assert "invoke wheels.pull" in caught.value.fix


def test_a_locked_wheel_is_taken_from_a_configured_folder_too(
    wheelhouse: Wheelhouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = wheelhouse.keep()
    wheelhouse.lock()
    folder = tmp_path / "links"
    folder.mkdir()
    shutil.move(kept.path, folder)
    shutil.rmtree(kept.path.parent)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    assert compiled_locations(wheelhouse.project, wheelhouse.locked()) == [str(folder / kept.filename)]


# --- several ----------------------------------------------------------------------------------------------


def test_of_several_the_user_has_to_name_one(wheelhouse: Wheelhouse) -> None:
    one = wheelhouse.keep(replace(INPUTS, mods=("1" * 64,)))
    other = wheelhouse.keep(replace(INPUTS, mods=("2" * 64,), flags=("-O1",)))
    with pytest.raises(SeveralWheelsError) as caught:
        wheelhouse.lock()
    assert "mods, flags" in caught.value.why
    assert one.key[:16] in caught.value.why
    wheelhouse.lock(other.key[:10])
    assert wheelhouse.locked().compiled == other.key
    wheelhouse.lock(one.key)
    assert wheelhouse.locked().compiled == one.key


def test_of_several_the_one_with_the_mods_of_the_checkout_is_taken(wheelhouse: Wheelhouse) -> None:
    mods = wheelhouse.mods()
    wheelhouse.keep(replace(INPUTS, mods=("1" * 64,)))
    right = wheelhouse.keep(replace(INPUTS, mods=mods))
    wheelhouse.lock()
    assert wheelhouse.locked().compiled == right.key
    assert not any("mods" in line for line in wheelhouse.said)


def test_a_wheel_with_other_mods_is_adopted_but_not_in_silence(wheelhouse: Wheelhouse) -> None:
    wheelhouse.keep(replace(INPUTS, mods=("1" * 64,)))
    wheelhouse.lock()
    assert any("was not compiled with the mods" in line for line in wheelhouse.said)


def test_the_locked_one_stays_until_it_is_upgraded(wheelhouse: Wheelhouse) -> None:
    first = wheelhouse.keep(replace(INPUTS, mods=("1" * 64,)))
    wheelhouse.lock()
    newer = wheelhouse.keep(replace(INPUTS, mods=wheelhouse.mods()))
    wheelhouse.lock(upgrade=("torch",))
    assert wheelhouse.locked().compiled == first.key
    wheelhouse.lock(upgrade=("vllm",))
    assert wheelhouse.locked().compiled == newer.key


def test_a_key_that_nothing_has_is_refused_before_anything_is_done(wheelhouse: Wheelhouse) -> None:
    kept = wheelhouse.keep()
    with pytest.raises(WheelNotKeptError) as caught:
        wheelhouse.lock("ffff")
    assert kept.key[:16] in caught.value.why
    assert wheelhouse.said == []


# --- other packages ---------------------------------------------------------------------------------------


def test_flashinfer_alone_can_be_our_own_compile_in_the_version_that_vllm_asks_for(
    wheelhouse: Wheelhouse,
) -> None:
    wheelhouse.checkout.edit_matrix(
        '"2.0": {release: "2.0"}', '"2.0": {release: "2.0", compile: [flashinfer-jit-cache]}'
    )
    old = replace(INPUTS, name="flashinfer-jit-cache", version="0.6.0")
    wheelhouse.keep(old)
    kept = wheelhouse.keep(replace(old, version="0.7.0"))
    lock = "2.0/gpu-linux-arm64.toml"
    wheelhouse.lock(target="big@2.0/gpu")
    assert wheelhouse.locked("flashinfer-jit-cache", lock).compiled == kept.key
    assert wheelhouse.locked("vllm", lock).compiled is None
    assert WheelLock.read(wheelhouse.checkout.locks / lock).kernels == "upstream"


def test_other_packages_are_compiled_with_their_own_command(wheelhouse: Wheelhouse) -> None:
    wheelhouse.checkout.edit_matrix(
        '"2.0": {release: "2.0"}', '"2.0": {release: "2.0", compile: [flashinfer-jit-cache]}'
    )
    with pytest.raises(CompileNeededError) as caught:
        wheelhouse.lock(target="big@2.0/gpu")
    assert "invoke compile --vllm 2.0 --arch gpu --what flashinfer`" in caught.value.fix
