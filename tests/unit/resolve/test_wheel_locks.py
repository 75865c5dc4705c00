"""Wheel locks: uv decides, the index says which file, and the base decides what fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefactory.environment.index_config import IndexConfig
from imagefactory.errors.locks import (
    IncompatibleWheelError,
    IndexUnreachableError,
    PathConflictError,
    ResolutionError,
    WheelMissingError,
)
from imagefactory.locks.files import WheelLock
from imagefactory.matrix.matrix import Arch, Base, Conflict
from imagefactory.resolve.wheel_locks import Pin, WheelRequest, choose_file, lock_wheels, platform_tags
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256
from imagefactory.store.indexes import WheelLocation
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory, sha256_of_file

BASE = Base(debian="bookworm", python="3.11", glibc="2.36", packages=["python3"])


def request(release: str = "1.0", *, conflicts: tuple[Conflict, ...] = (), **arch: object) -> WheelRequest:
    settings = {"platforms": ["linux/arm64"], "base": "bookworm", **arch}
    return WheelRequest(
        vllm=release,
        release=release,
        arch_name="gb10",
        arch=Arch.model_validate(settings),
        base=BASE,
        platform="linux/arm64",
        kernels="upstream",
        conflicts=conflicts,
        made_from={"vllm.1.0": Sha256("0" * 64)},
    )


class Locker:
    """Locks against one index, with a store of its own."""

    def __init__(self, index: SimpleIndex, folder: Path) -> None:
        self.config = IndexConfig(indexes=(index.url,))
        self.store = Store(folder)
        self.said: list[str] = []

    def __call__(self, wanted: WheelRequest, config: IndexConfig | None = None) -> WheelLock:
        return lock_wheels(wanted, config=config or self.config, store=self.store, say=self.said.append)


@pytest.fixture
def lock(simple_index: SimpleIndex, tmp_path: Path) -> Locker:
    return Locker(simple_index, tmp_path / "store")


@pytest.mark.parametrize("style", ["html", "json"])
def test_a_lock_names_the_files_of_the_image_and_not_those_of_this_computer(
    lock: Locker, simple_index: SimpleIndex, wheel_factory: WheelFactory, style: str
) -> None:
    simple_index.style = "json" if style == "json" else "html"
    right = wheel_factory(
        "vllm", tag="cp38-abi3-manylinux_2_31_aarch64", requires=["dep; python_version<'3.12'"]
    )
    simple_index.add(
        right,
        wheel_factory("vllm", tag="cp38-abi3-manylinux_2_31_x86_64"),
        wheel_factory("vllm", tag="cp38-abi3-macosx_11_0_arm64"),
        wheel_factory("dep", tag="cp311-cp311-musllinux_1_2_aarch64"),
        wheel_factory("dep", tag="cp312-cp312-manylinux_2_17_aarch64"),
        wheel_factory("dep", tag="py3-none-any"),
        wheel_factory("dep", tag="cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64"),
    )
    dep, vllm = lock(request()).wheels
    assert vllm.file == right.name
    assert vllm.sha256 == sha256_of_file(right)
    assert vllm.size == right.stat().st_size
    assert dep.file == "dep-1.0-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl"


def test_wheels_are_locked_without_being_downloaded(
    lock: Locker, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    big = wheel_factory("vllm", files={"vllm.bin": bytes(range(256)) * 40_000}, stored=True)
    simple_index.add(big)
    lock(request())
    assert big.stat().st_size > 10_000_000
    assert simple_index.bytes_served(big.name) < big.stat().st_size / 20


def test_a_conflict_between_large_wheels_is_found_from_their_directories_alone(
    lock: Locker, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    load = bytes(range(256)) * 20_000
    one = wheel_factory("one", files={"shared/a.py": "1", "one.bin": load}, stored=True)
    two = wheel_factory("two", files={"shared/a.py": "2", "two.bin": load}, stored=True)
    simple_index.add(one, two, wheel_factory("vllm", requires=["one", "two"]))
    with pytest.raises(PathConflictError, match="one and two both install"):
        lock(request())
    for wheel in (one, two):
        assert simple_index.bytes_served(wheel.name) < wheel.stat().st_size / 10
    settled = lock(request(conflicts=(Conflict(between=["one", "two"], wins="two", reason="a good reason"),)))
    assert {wheel.name: wheel.without for wheel in settled.wheels} == {
        "one": ("lib/python3.11/site-packages/shared/a.py",),
        "two": (),
        "vllm": (),
    }


def test_what_an_arch_goes_without_is_left_out_with_all_it_drags_in(
    lock: Locker, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    simple_index.add(
        wheel_factory("vllm", requires=["torchvision", "dep"]),
        wheel_factory("torchvision", requires=["pillow"]),
        wheel_factory("pillow"),
        wheel_factory("dep"),
    )
    assert [wheel.name for wheel in lock(request(without=["torchvision"])).wheels] == ["dep", "vllm"]


def test_a_local_build_for_other_hardware_is_taken_only_where_it_is_asked_for(
    lock: Locker,
    simple_index: SimpleIndex,
    wheel_factory: WheelFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simple_index.add(wheel_factory("vllm", requires=["torch==2.0"]), wheel_factory("torch", "2.0"))
    cpu = wheel_factory("torch", "2.0+cpu")
    folder = wheel_factory.folder / "local"
    folder.mkdir()
    cpu.rename(folder / cpu.name)
    config = IndexConfig(indexes=lock.config.indexes, find_links=(str(folder),))
    # uv would read the variable by itself.
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    assert lock(request(), config).wheels[0].file == "torch-2.0-py3-none-any.whl"
    assert lock(request(local_versions=["cpu"]), config).wheels[0].version == "2.0+cpu"


def test_an_extra_index_that_does_not_answer_is_left_out_aloud(
    lock: Locker, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    simple_index.add(wheel_factory("vllm"))
    lock(request(indexes=["https://127.0.0.1:9/whl/cpu"]))
    assert any("127.0.0.1:9" in line and "does not answer" in line for line in lock.said)


def test_an_extra_index_with_part_of_a_version_does_not_hide_the_rest_of_it(
    lock: Locker, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    wheel = wheel_factory("vllm", tag="cp38-abi3-manylinux_2_31_aarch64")
    simple_index.add(wheel)
    partial = SimpleIndex()
    partial.add(wheel_factory("vllm", tag="cp38-abi3-manylinux_2_31_x86_64"))
    try:
        locked = lock(request(), IndexConfig(indexes=(simple_index.url, partial.url)))
    finally:
        partial.close()
    assert [entry.file for entry in locked.wheels] == [wheel.name]


def test_a_package_or_version_that_no_index_has_is_missing(
    lock: Locker, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    with pytest.raises(WheelMissingError, match="vllm"):
        lock(request())
    simple_index.add(wheel_factory("vllm", "0.9"))
    with pytest.raises(WheelMissingError, match=r"vllm==1\.0"):
        lock(request())


def test_a_wheel_for_a_newer_glibc_or_another_python_does_not_fit(
    lock: Locker, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    simple_index.add(wheel_factory("vllm", tag="cp311-cp311-manylinux_2_38_aarch64"))
    with pytest.raises(IncompatibleWheelError, match="manylinux_2_38"):
        lock(request())


def test_requirements_that_contradict_each_other_cannot_be_resolved(
    lock: Locker, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    simple_index.add(wheel_factory("vllm", requires=["dep<1", "dep>1"]), wheel_factory("dep", "1.0"))
    with pytest.raises(ResolutionError, match="dep"):
        lock(request())


def test_an_index_that_does_not_answer_is_told_from_one_that_lacks_something(lock: Locker) -> None:
    with pytest.raises(IndexUnreachableError) as failure:
        lock(request(), IndexConfig(indexes=("http://user:secret@127.0.0.1:9/simple",)))
    assert "secret" not in str(failure.value)


def test_a_file_without_a_hash_cannot_be_locked(
    lock: Locker, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    simple_index.add(wheel_factory("vllm"))
    simple_index.hashes = False
    with pytest.raises(WheelMissingError, match="sha256"):
        lock(request())


def test_variables_that_steer_uv_do_not_steer_a_lock(
    lock: Locker, simple_index: SimpleIndex, wheel_factory: WheelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    simple_index.add(
        wheel_factory("vllm", requires=["dep"]), wheel_factory("dep"), wheel_factory("dep", "2.0")
    )
    monkeypatch.setenv("UV_RESOLUTION", "lowest")
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2001-01-01")
    assert lock(request()).wheels[0].version == "2.0"


# --- tags -------------------------------------------------------------------------------------------------


def tags(platform: str) -> list[str]:
    return [str(tag) for tag in platform_tags(BASE, platform)]


def test_tags_stop_at_the_glibc_of_the_base_and_prefer_the_newest() -> None:
    arm = tags("linux/arm64")
    assert arm[0] == "cp311-cp311-manylinux_2_36_aarch64"
    assert "cp311-cp311-manylinux_2_37_aarch64" not in arm
    assert "cp311-cp311-manylinux2014_aarch64" in arm
    assert "cp311-cp311-manylinux1_aarch64" not in arm
    assert "cp311-cp311-manylinux1_x86_64" in tags("linux/amd64")
    assert {"cp38-abi3-manylinux_2_31_aarch64", "py3-none-any"} <= set(arm)
    assert not any("musllinux" in tag or "x86_64" in tag for tag in arm)


def test_of_equal_files_the_first_source_wins_and_a_higher_build_number_counts() -> None:
    names = ["a-1.0-py3-none-any.whl", "a-1.0-2-py3-none-any.whl", "a-1.0-py3-none-any.whl", "broken.whl"]
    offered = [
        WheelLocation(file=name, url=f"https://index.example/{place}/{name}", sha256="0" * 64)
        for place, name in enumerate(names)
    ]
    ranks = {tag: rank for rank, tag in enumerate(platform_tags(BASE, "linux/arm64"))}
    assert choose_file(offered, Pin("a", "1.0", ()), ranks, request()).file == "a-1.0-2-py3-none-any.whl"
    without_builds = [offered[0], offered[2]]
    assert choose_file(without_builds, Pin("a", "1", ()), ranks, request()) is offered[0]
