"""Tests which compiled wheel a lock adopts, and that the lock decides afterwards."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from imagefactory.compile.graft import make_graft
from imagefactory.compile.toolchain import check_all_locks
from imagefactory.errors import FactoryError
from imagefactory.lock import auditing
from imagefactory.lock.making import make_locks
from imagefactory.lock.wheelhouse.adopt import mods_of_sources
from imagefactory.lock.wheelhouse.keep import CompileInputs, KeptWheel, keep, read_graft
from imagefactory.lock.wheelhouse.share import locate
from imagefactory.plan.make import make_plan
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import LockedWheel, WheelLock
from imagefactory.project.locks.kernels import GpuCode
from imagefactory.project.project import Project
from imagefactory.store.digests import file_sha256
from imagefactory.store.downloads import fetch
from tests.fixtures.checkouts import Checkout
from tests.fixtures.extensions import extension
from tests.fixtures.failures import raises
from tests.fixtures.mods import edit, has, manifest, write_mod
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheelhouse import INPUTS, TAG
from tests.fixtures.wheels import WheelFactory, make_wheel

OTHER_MODS = replace(INPUTS, mods=("1" * 64,))


class Wheelhouse:
    """A checkout whose vLLM 1.0 has to be compiled, an index for the rest, and kernels that a test may choose."""

    def __init__(self, checkout: Checkout, folder: Path) -> None:
        self.checkout = checkout
        self.folder = folder
        self.kernels = GpuCode(cubins={"sm_121a": 3})
        self.said: list[str] = []
        self.cell = Cell("big", "1.0", "gpu", "linux/arm64")

    @property
    def project(self) -> Project:
        return Project(self.checkout.root)

    @property
    def path(self) -> Path:
        return self.project.wheel_lock_path(self.cell)

    def keep(self, inputs: CompileInputs = INPUTS, kernels: str = "") -> KeptWheel:
        """Keep a wheel; the same inputs may have given other kernels."""
        wheel = make_wheel(
            self.folder / f"{inputs.key[:8]}{kernels}",
            inputs.name,
            inputs.version,
            requires=["torch==1.0"] if inputs.name == "vllm" else [],
            tag=TAG,
            files={f"{inputs.name.replace('-', '_')}/_C.abi3.so": inputs.key + kernels},
        )
        return keep(self.project.store, inputs, wheel)

    def lock(self, *wheels: str, upgrade: tuple[str, ...] = ()) -> WheelLock:
        say = self.said.append
        list(make_locks(self.project, [self.cell], upgrade=upgrade, wheels=wheels, say=say))
        return WheelLock.read(self.path)

    def refusal(self, kind: str, *wheels: str) -> FactoryError:
        """Return the error of a lock that fails, and leaves no lock behind."""
        with raises(kind) as caught:
            self.lock(*wheels)
        assert not self.path.exists()
        return caught.value


def find(lock: WheelLock, name: str = "vllm") -> LockedWheel:
    return next(wheel for wheel in lock.wheels if wheel.name == name)


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
    change = edit("CMakeLists.txt", "set(ARCHS 1)", replace="set(ARCHS 2)")
    mod = manifest("m", change, checks=[has("CMakeLists.txt", "2")], variant={"stage": "source"})
    write_mod(locked_checkout.root / "mods", mod)
    made = Wheelhouse(locked_checkout, tmp_path / "compiled")
    monkeypatch.setattr(auditing, "read_kernels", lambda *_: made.kernels)
    return made


def test_lock_names_the_compiled_wheel_and_follows_its_requirements(wheelhouse: Wheelhouse) -> None:
    kept = wheelhouse.keep()
    lock = wheelhouse.lock()
    wheel = find(lock)
    assert (wheel.file, wheel.sha256, wheel.size) == (kept.filename, kept.sha256, kept.size)
    assert (wheel.compiled, wheel.version, wheel.needed_by) == (kept.key, "1.0", ("matrix.yaml",))
    assert lock.kernels == "compiled"
    # The published wheel of that version requires more, but was not used.
    assert {wheel.name for wheel in lock.wheels} == {"vllm", "torch"}
    # This version needs another torch on machines with a GPU.
    assert (find(lock, "torch").version, find(lock, "torch").compiled) == ("1.0+cu130", None)
    assert f'compiled = "{kept.key}"' in wheelhouse.path.read_text()
    check_all_locks(wheelhouse.project)
    plan = make_plan(wheelhouse.project, wheelhouse.cell)
    assert plan.kernels == plan.config.labels["imagefactory.kernels"] == "compiled"
    assert plan.config.labels["imagefactory.compiled"] == f"vllm:{kept.key}"
    assert plan.config.labels["imagefactory.audit"] == "passed"
    record = wheelhouse.project.kernel_lock.find(kept.sha256)
    assert record is not None
    assert record.libraries[0].cubins == {"sm_121a": 3}


@pytest.mark.parametrize(
    ("other", "mentioned"),
    [
        ({"arch_list": "12.0a"}, "1.0 for 12.0a"),
        ({"version": "2.0"}, "2.0 for 12.1a"),
        ({"name": "flashinfer-jit-cache"}, "Searched"),
    ],
)
def test_wheel_for_something_else_is_not_adopted_but_mentioned(
    wheelhouse: Wheelhouse, other: dict[str, str], mentioned: str
) -> None:
    wheelhouse.keep(replace(INPUTS, **other))  # type: ignore[arg-type]
    error = wheelhouse.refusal("compile-needed")
    assert mentioned in error.why
    assert "`./inv compile --vllm 1.0 --arch gpu --what vllm`" in error.fix
    assert "./inv lock --target big@1.0/gpu" in error.fix


def with_system(**changes: str) -> CompileInputs:
    return replace(INPUTS, system={**INPUTS.system, **changes})


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (with_system(python="3.13"), "it is for Python 3.13, and the base has 3.11"),
        (with_system(glibc="2.41"), "it needs glibc 2.41, and the base has 2.36"),
        (replace(INPUTS, system={}), "does not say which Python, glibc and CUDA"),
        (replace(INPUTS, kind="graft"), "it is a graft wheel, and matrix.yaml wants a whole one"),
        (with_system(cuda="12.8"), "compiled with CUDA 12.8, and the image gets nvidia-cuda-runtime 13.0.96"),
    ],
)
def test_wheel_for_another_system_or_of_another_kind_is_refused_with_the_reason(
    wheelhouse: Wheelhouse,
    simple_index: SimpleIndex,
    wheel_factory: WheelFactory,
    inputs: CompileInputs,
    reason: str,
) -> None:
    tag = "cp311-cp311-manylinux_2_28_aarch64"
    simple_index.add(
        wheel_factory("torch", "1.0+cu130", tag=tag, requires=["nvidia-cuda-runtime"]),
        wheel_factory("nvidia-cuda-runtime", "13.0.96"),
    )
    kept = wheelhouse.keep(inputs)
    for error in (wheelhouse.refusal("unfit-wheel"), wheelhouse.refusal("unfit-wheel", kept.key)):
        assert reason in error.why
        assert kept.key[:16] in error.why
        assert "./inv compile --vllm 1.0 --arch gpu --what vllm" in error.fix


def test_lock_says_which_files_of_a_graft_are_whose(wheelhouse: Wheelhouse) -> None:
    wheelhouse.checkout.edit_matrix("compile: whole", "compile: {gpu: graft}")
    library = wheelhouse.folder / "_C.abi3.so"
    files: dict[str, bytes | str] = {"vllm/_C.abi3.so": extension("_C", platform="linux/arm64")}
    tag = "cp38-abi3-manylinux_2_28_aarch64"
    published = make_wheel(
        wheelhouse.folder / "published", "vllm", "1.0", files=files, tag=tag, requires=["torch==1.0"]
    )
    library.write_bytes(extension("_C", code=b"own", platform="linux/arm64"))
    sources = {**INPUTS.sources, "published": f"wheel:{file_sha256(published)}"}
    inputs = replace(INPUTS, kind="graft", sources=sources)
    made = make_graft(
        published, published.name, [library], wheelhouse.folder, inputs=inputs, arch="gpu",
        platform_tag="manylinux_2_36_aarch64", mods={}, other_chips={},
    )  # fmt: skip
    wheelhouse.keep()
    assert "wants a graft one" in wheelhouse.refusal("unfit-wheel").why
    kept = keep(wheelhouse.project.store, inputs, made)
    lock = wheelhouse.lock()
    wheel = find(lock)
    assert (lock.kernels, wheel.compiled, wheel.file) == ("graft", kept.key, kept.filename)
    assert wheel.version == f"1.0+graft.gpu.{kept.key[:8]}"
    assert wheel.graft == read_graft(kept.path, inputs)
    assert [file.path for file in wheel.graft.replaced] == ["vllm/_C.abi3.so"]
    check_all_locks(wheelhouse.project)
    plan = make_plan(wheelhouse.project, wheelhouse.cell)
    assert plan.config.labels["imagefactory.kernels"] == plan.kernels == "graft"
    assert plan.config.labels["imagefactory.grafted"] == "vllm/_C.abi3.so"


def test_version_of_the_same_release_keeps_the_other_packages(
    wheelhouse: Wheelhouse, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    wheelhouse.checkout.edit_matrix(
        '"2.0": {release: "2.0"}', '"2.0": {release: "2.0"}\n  own: {release: "2.0", compile: whole}'
    )
    simple_index.add(wheel_factory("vllm", "2.0", requires=["small"]), wheel_factory("small", "1.0"))
    wheelhouse.cell = replace(wheelhouse.cell, version="2.0")
    wheelhouse.path.unlink()
    assert find(wheelhouse.lock(), "small").version == "1.0"
    simple_index.add(wheel_factory("small", "2.0"))
    inputs = replace(INPUTS, version="2.0")
    files: dict[str, bytes | str] = {"vllm/_C.abi3.so": "code"}
    compiled = make_wheel(wheelhouse.folder / "own", "vllm", "2.0", requires=["small"], tag=TAG, files=files)
    keep(wheelhouse.project.store, inputs, compiled)
    wheelhouse.cell = replace(wheelhouse.cell, version="own")
    assert find(wheelhouse.lock(), "small").version == "1.0"
    assert find(wheelhouse.lock(upgrade=("small",)), "small").version == "2.0"


@pytest.mark.parametrize(
    ("kernels", "kind", "what"),
    [
        (GpuCode(cubins={"sm_120a": 2}), "audit-failed", "would not run"),
        (GpuCode(cubins={"sm_90a": 1}), "wrong-wheel", "no kernels for gpu"),
        (GpuCode(ptx={"sm_80": 1}), "wrong-wheel", "no kernels for gpu"),
    ],
)
def test_wheel_without_usable_kernels_is_refused(
    wheelhouse: Wheelhouse, kernels: GpuCode, kind: str, what: str
) -> None:
    wheelhouse.keep()
    wheelhouse.kernels = kernels
    assert what in wheelhouse.refusal(kind).what


def fetch_wheel(wheelhouse: Wheelhouse, wheel: LockedWheel) -> Path:
    with requests.Session() as session:
        return fetch(locate(wheelhouse.project, wheel), wheelhouse.project.store, session, lambda _: None)


def test_build_finds_the_compiled_wheel_or_says_how_to_get_it(
    wheelhouse: Wheelhouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheelhouse.keep(with_system(python="3.13"))
    kept = wheelhouse.keep()
    wheel = find(wheelhouse.lock())
    assert wheel.compiled == kept.key, "one that does not fit is passed over"
    assert fetch_wheel(wheelhouse, wheel).read_bytes() == kept.path.read_bytes()
    shutil.copy(kept.path, tmp_path)
    kept.path.write_bytes(bytes(kept.size))
    wheelhouse.path.unlink()
    wheelhouse.refusal("damaged-wheel")
    shutil.rmtree(kept.path.parent)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wanted = locate(wheelhouse.project, wheel)
    assert wanted.locations() == [str(tmp_path / kept.filename)]
    monkeypatch.delenv("PIP_FIND_LINKS")
    shutil.rmtree(wheelhouse.project.store.root)
    with raises("compile-needed", match=f"(?s)the compile of vllm.*{kept.sha256[:16]}") as caught:
        fetch_wheel(wheelhouse, wheel)
    assert "FACTORY_REGISTRY" in caught.value.fix


def test_another_result_of_the_same_inputs_is_locked_once_nobody_has_the_locked_file(
    wheelhouse: Wheelhouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    theirs = wheelhouse.keep()
    locked = wheelhouse.lock()
    shutil.copy(theirs.path, tmp_path)
    shutil.rmtree(wheelhouse.project.store.root)
    assert wheelhouse.lock() == locked, "a fork that compiled nothing keeps what it has"
    ours = wheelhouse.keep(kernels="other bytes")
    assert (ours.key, ours.sha256 != theirs.sha256) == (theirs.key, True)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert wheelhouse.lock() == locked, "it is still to be had"
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert find(wheelhouse.lock()).sha256 == ours.sha256


def test_user_chooses_when_several_wheels_fit(wheelhouse: Wheelhouse) -> None:
    one = wheelhouse.keep(OTHER_MODS)
    other = wheelhouse.keep(replace(INPUTS, mods=("2" * 64,), flags=("-O1",)))
    error = wheelhouse.refusal("several-wheels")
    assert "mods, flags" in error.why
    assert one.key[:16] in error.why
    assert find(wheelhouse.lock(other.key[:10])).compiled == other.key
    assert find(wheelhouse.lock(one.key)).compiled == one.key


def test_locked_wheel_stays_until_upgraded_to_one_with_the_mods_of_the_checkout(
    wheelhouse: Wheelhouse,
) -> None:
    first = wheelhouse.keep(OTHER_MODS)
    wheelhouse.lock()
    assert any("was not compiled with the mods" in line for line in wheelhouse.said)
    mods = mods_of_sources(wheelhouse.project, wheelhouse.cell)
    assert len(mods) == 1
    newer = wheelhouse.keep(replace(INPUTS, mods=mods))
    assert find(wheelhouse.lock(upgrade=("torch",))).compiled == first.key
    wheelhouse.said.clear()
    assert find(wheelhouse.lock(upgrade=("vllm",))).compiled == newer.key
    assert not any("mods" in line for line in wheelhouse.said)


def test_unknown_key_is_refused_before_any_work(wheelhouse: Wheelhouse) -> None:
    kept = wheelhouse.keep()
    assert kept.key[:16] in wheelhouse.refusal("wheel-not-kept", "ffff").why
    assert wheelhouse.said == []


def test_flashinfer_alone_is_adopted_in_the_version_that_vllm_requires(wheelhouse: Wheelhouse) -> None:
    wheelhouse.checkout.edit_matrix(
        '"2.0": {release: "2.0"}', '"2.0": {release: "2.0", compile: [flashinfer-jit-cache]}'
    )
    wheelhouse.cell = replace(wheelhouse.cell, version="2.0")
    wheelhouse.path.unlink()
    old = replace(INPUTS, name="flashinfer-jit-cache", version="0.6.0")
    wheelhouse.keep(old)
    error = wheelhouse.refusal("compile-needed")
    assert "./inv compile --vllm 2.0 --arch gpu --what flashinfer`" in error.fix
    kept = wheelhouse.keep(replace(old, version="0.7.0"))
    lock = wheelhouse.lock()
    assert find(lock, "flashinfer-jit-cache").compiled == kept.key
    assert find(lock).compiled is None
    assert lock.kernels == "upstream"
