"""Tests making wheel locks: uv resolves versions, the index provides the files, and the base decides which fit."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from imagefactory.lock.wheel_locks import Pin, WheelRequest, choose_file, lock_wheels, tag_ranks
from imagefactory.project.bases import Base, LeaveOut
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import LockedWheel, WheelLock
from imagefactory.project.matrix import Arch, Conflict
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import WheelLocation
from tests.fixtures.failures import raises
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory, sha256_of_file

BASE = Base(debian="bookworm", python="3.11", glibc="2.36", packages=["python3"])
VLLM_TAG = "cp38-abi3-manylinux_2_31_aarch64"


def request(*, conflicts: tuple[Conflict, ...] = (), **arch: object) -> WheelRequest:
    return WheelRequest(
        cell=Cell("any", "1.0", "gb10", "linux/arm64"),
        distribution="vllm",
        release="1.0",
        arch=Arch.model_validate({"platforms": ["linux/arm64"], "base": "bookworm", **arch}),
        base=BASE,
        conflicts=conflicts,
        made_from={"vllm.1.0": Sha256("0" * 64)},
    )


class Locker:
    """An index that wheels are added to and locked from, with a store of its own."""

    def __init__(self, index: SimpleIndex, factory: WheelFactory, folder: Path) -> None:
        self.index = index
        self.config = IndexConfig(indexes=(index.url,))
        self.make = factory
        self.store = Store(folder)
        self.said: list[str] = []

    def add(self, name: str, version: str = "1.0", **options: object) -> Path:
        wheel = self.make(name, version, **options)
        self.index.add(wheel)
        return wheel

    def __call__(self, config: IndexConfig | None = None, **changes: object) -> list[LockedWheel]:
        return list(self.make_lock(request(**changes), config).wheels)  # type: ignore[arg-type]

    def make_lock(
        self, wanted: WheelRequest, config: IndexConfig | None = None, keep: Sequence[LockedWheel] = ()
    ) -> WheelLock:
        config = config or self.config
        return lock_wheels(wanted, config=config, store=self.store, keep=keep, say=self.said.append)


@pytest.fixture
def lock(simple_index: SimpleIndex, wheel_factory: WheelFactory, tmp_path: Path) -> Locker:
    return Locker(simple_index, wheel_factory, tmp_path / "store")


@pytest.mark.parametrize("style", ["html", "json"])
def test_lock_has_files_for_the_images_platform(lock: Locker, style: str) -> None:
    lock.index.style = "json" if style == "json" else "html"
    right = lock.add("vllm", tag=VLLM_TAG, requires=["dep; python_version<'3.12'"])
    for tag in ("cp38-abi3-manylinux_2_31_x86_64", "cp38-abi3-macosx_11_0_arm64"):
        lock.add("vllm", tag=tag)
    for tag in ("cp311-cp311-musllinux_1_2_aarch64", "cp312-cp312-manylinux_2_17_aarch64", "py3-none-any"):
        lock.add("dep", tag=tag)
    best = lock.add("dep", tag="cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64")
    dep, vllm = lock()
    assert (vllm.file, vllm.sha256, vllm.size) == (right.name, sha256_of_file(right), right.stat().st_size)
    assert dep.file == best.name


def test_matrix_settles_conflicts_between_wheels(lock: Locker) -> None:
    for name in ("one", "two"):
        lock.add(name, files={"shared/a.py": name})
    lock.add("vllm", requires=["one", "two"])
    settled = lock(conflicts=(Conflict(between=["one", "two"], wins="two", reason="a good reason"),))
    assert {wheel.name: wheel.without for wheel in settled} == {
        "one": ("lib/python3.11/site-packages/shared/a.py",),
        "two": (),
        "vllm": (),
    }


def test_excluded_requirement_is_left_out_with_its_dependencies(lock: Locker) -> None:
    lock.add("vllm", requires=["torchvision", "dep"])
    lock.add("torchvision", requires=["pillow"])
    lock.add("pillow")
    lock.add("dep")
    assert [wheel.name for wheel in lock(without=["torchvision"])] == ["dep", "vllm"]


def test_lock_says_what_was_left_out_and_keeps_its_version(lock: Locker) -> None:
    lock.add("vllm", requires=["cu12", "dep"])
    lock.add("cu12", requires=["only"])
    lock.add("only")
    lock.add("dep", files={"dep/a.py": "", "dep/big.so": "12345"})
    why = "the image runs CUDA 13"
    entries = [
        LeaveOut(distribution="cu12", reason=why),
        LeaveOut(distribution="dep", files=["dep/*.so"], reason=why),
    ]
    wanted = replace(request(), leave_out=entries)
    made = lock.make_lock(wanted)
    assert [wheel.name for wheel in made.wheels] == ["dep", "vllm"]
    assert made.wheels[0].not_installed == ("lib/python3.11/site-packages/dep/big.so",)
    assert [(wheel.name, wheel.version) for wheel in made.left_out] == [("cu12", "1.0"), ("only", "1.0")]
    path = lock.store.root / "lock.toml"
    made.write(path)
    assert WheelLock.read(path).left_out == made.left_out
    lock.add("cu12", "1.1")
    assert lock.make_lock(wanted, keep=[*made.wheels, *made.left_out]).left_out == made.left_out


def test_local_version_is_used_only_where_the_arch_accepts_it(lock: Locker, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.add("vllm", requires=["torch==2.0"])
    lock.add("torch", "2.0")
    cpu = lock.make("torch", "2.0+cpu")
    folder = lock.make.folder / "local"
    folder.mkdir()
    cpu.rename(folder / cpu.name)
    config = IndexConfig(indexes=lock.config.indexes, find_links=(str(folder),))
    # uv would read the variable by itself.
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    assert lock(config)[0].file == "torch-2.0-py3-none-any.whl"
    assert lock(config, local_versions=["cpu"])[0].version == "2.0+cpu"


def test_extra_index_with_part_of_a_version_does_not_hide_the_rest(lock: Locker) -> None:
    wheel = lock.add("vllm", tag=VLLM_TAG)
    partial = SimpleIndex()
    partial.add(lock.make("vllm", tag="cp38-abi3-manylinux_2_31_x86_64"))
    try:
        locked = lock(IndexConfig(indexes=(lock.index.url, partial.url)))
    finally:
        partial.close()
    assert [entry.file for entry in locked] == [wheel.name]


@pytest.mark.parametrize(
    ("wheels", "kind", "why"),
    [
        ([], "no-wheel", "vllm"),
        ([{"version": "0.9"}], "no-wheel", r"vllm==1\.0"),
        ([{"tag": "cp311-cp311-manylinux_2_38_aarch64"}], "incompatible-wheel", "manylinux_2_38"),
        (
            [{"requires": ["n==1.0"]}, {"name": "n", "tag": "cp310-cp310-linux_aarch64"}],
            "incompatible-wheel",
            "n==",
        ),
        ([{"requires": ["dep<1", "dep>1"]}, {"name": "dep"}], "unresolvable", "dep"),
    ],
    ids=["no package", "another version", "newer glibc", "older Python", "contradiction"],
)
def test_unresolvable_request_is_refused_with_the_reason(
    lock: Locker, wheels: list[dict[str, str]], kind: str, why: str
) -> None:
    for wheel in wheels:
        lock.add(**{"name": "vllm", **wheel})
    with raises(kind, match=why):
        lock()


def test_file_without_a_hash_is_refused(lock: Locker) -> None:
    lock.add("vllm")
    lock.index.hashes = False
    with raises("no-wheel", match="sha256"):
        lock()


def test_neither_uv_variables_nor_an_unreachable_extra_index_change_a_lock(
    lock: Locker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock.add("vllm", requires=["dep"])
    lock.add("dep")
    lock.add("dep", "2.0")
    monkeypatch.setenv("UV_RESOLUTION", "lowest")
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2001-01-01")
    assert lock(indexes=["https://127.0.0.1:9/whl/cpu"])[0].version == "2.0"
    assert any("127.0.0.1:9" in line and "does not answer" in line for line in lock.said)


def test_tags_prefer_the_newest_glibc_up_to_that_of_the_base() -> None:
    platforms = ("linux/arm64", "linux/amd64")
    arm, amd = ([str(tag) for tag in tag_ranks(BASE.python, BASE.glibc, platform)] for platform in platforms)
    assert arm[0] == "cp311-cp311-manylinux_2_36_aarch64"
    assert "cp311-cp311-manylinux_2_37_aarch64" not in arm
    assert "cp311-cp311-manylinux2014_aarch64" in arm
    assert "cp311-cp311-manylinux1_aarch64" not in arm
    assert "cp311-cp311-manylinux1_x86_64" in amd
    assert {VLLM_TAG, "py3-none-any"} <= set(arm)
    assert not any("musllinux" in tag or "x86_64" in tag for tag in arm)


def test_higher_build_number_wins_then_the_first_source() -> None:
    names = ["a-1.0-py3-none-any.whl", "a-1.0-2-py3-none-any.whl", "a-1.0-py3-none-any.whl", "broken.whl"]
    offered = [
        WheelLocation(file=name, url=f"https://index.example/{place}/{name}", sha256="0" * 64)
        for place, name in enumerate(names)
    ]
    ranks = tag_ranks(BASE.python, BASE.glibc, "linux/arm64")
    assert choose_file(offered, Pin("a", "1.0", ()), ranks, request()) is offered[1]
    without_builds = [offered[0], offered[2]]
    assert choose_file(without_builds, Pin("a", "1", ()), ranks, request()) is offered[0]


def test_overrides_and_extras_change_what_is_required(lock: Locker) -> None:
    lock.add("vllm", requires=["gone==1.0rc5", "more==1.0 ; extra == 'fast'"])
    for name in ("gone", "more"):
        lock.add(name)
    with raises("no-wheel", match=r"gone==1\.0rc5"):
        lock()
    for extras, more in (([], {}), (["fast"], {"more": "1.0"})):
        made = lock.make_lock(replace(request(), overrides=["gone==1.0"], extras=extras))
        assert {wheel.name: wheel.version for wheel in made.wheels} == {"gone": "1.0", **more, "vllm": "1.0"}
    assert [wheel.needed_by for wheel in made.wheels] == [
        ("matrix.yaml", "vllm"),
        ("vllm",),
        ("matrix.yaml",),
    ]


def test_override_of_the_server_itself_is_refused(lock: Locker) -> None:
    lock.add("vllm")
    lock.add("vllm", "0.2")
    wanted = replace(request(), overrides=["vllm==0.2"])
    with raises("release-replaced", match=r"vllm 1\.0 was asked for, and uv chose 0\.2"):
        lock.make_lock(wanted)
