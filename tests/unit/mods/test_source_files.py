"""Mods are checked on archives that are pinned by hash, and read by range request where possible."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from imagefactory.lock.lookups import lock_archive
from imagefactory.mods.source_files import (
    FolderSource,
    ReleaseSource,
)
from imagefactory.project.locks.files import LockedSource
from imagefactory.store.cache import Store
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes
from tests.fixtures.failures import raises
from tests.fixtures.releases import make_sdist
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory, sha256_of_file

FILES: dict[str, bytes | str] = {
    "vllm/__init__.py": "",
    "vllm/x.py": "one = 1\r\ntwo = 2\n",
    "vllm/big.bin": b"\xff" * 1_500_000,
    "vllm/odd.txt": b"fine\n\xff\n",
}


@dataclass
class Release:
    """A release of vLLM: the index that offers it, its lock entries, and a store to read it through."""

    index: SimpleIndex
    store: Store

    @property
    def indexes(self) -> Indexes:
        return Indexes(IndexConfig(indexes=(self.index.url,)))

    @cached_property
    def locked(self) -> list[LockedSource]:
        return [lock_archive(kind, "vllm", "1.0", self.indexes, "") for kind in ("wheel", "sdist")]

    def open(self, locked: LockedSource) -> ReleaseSource:
        return ReleaseSource(locked, self.indexes, self.store)


@pytest.fixture
def release(simple_index: SimpleIndex, wheel_factory: WheelFactory, tmp_path: Path) -> Release:
    """Offer vLLM 1.0 as two wheels and an sdist, and 0.9 as a wheel alone."""
    tags = ("cp38-abi3-manylinux1_x86_64", "cp38-abi3-manylinux2_aarch64")
    simple_index.add(
        *(wheel_factory("vllm", "1.0", files=FILES, tag=tag, stored=True) for tag in tags),
        wheel_factory("vllm", "0.9", files=FILES),
        make_sdist(wheel_factory.folder, {**FILES, "csrc/x.cu": "int x;\n"}),
    )
    return Release(simple_index, Store(tmp_path / "store"))


def test_lock_pins_one_wheel_and_the_sdist_of_a_release(release: Release) -> None:
    assert [source.file for source in release.locked] == [
        "vllm-1.0-cp38-abi3-manylinux1_x86_64.whl",
        "vllm-1.0.tar.gz",
    ]
    for source in release.locked:
        assert source.sha256 == sha256_of_file(release.index.files[source.file])
        assert source.size == release.index.files[source.file].stat().st_size
    assert release.index.bytes_served(release.locked[0].file) < 100_000


@pytest.mark.parametrize(("version", "missing"), [("0.9", "sdist"), ("0.8", "wheel")])
def test_lock_refuses_an_incomplete_release(release: Release, version: str, missing: str) -> None:
    with raises("no-wheel", match=rf"lacks the {missing} of vllm {re.escape(version)}"):
        lock_archive(missing, "vllm", version, release.indexes, "It is needed.")


@pytest.mark.parametrize("number", [0, 1])
def test_files_keep_their_line_ends_and_are_read_once(release: Release, number: int) -> None:
    locked, asked = release.locked[number], 0
    for _ in range(2):
        source = release.open(locked)
        assert source.read("vllm/x.py") == "one = 1\r\ntwo = 2\n"
        assert source.read("vllm/none.py") is None
        asked = asked or len(release.index.log)
    assert len(release.index.log) == asked


def test_wheel_is_read_by_ranges_and_sdist_is_downloaded(release: Release) -> None:
    wheel, sdist = release.locked
    before = release.index.bytes_served(wheel.file)
    release.open(wheel).read("vllm/x.py")
    assert release.index.bytes_served(wheel.file) - before < 200_000 < wheel.size
    assert not release.store.download(wheel.sha256).exists()
    with raises("mod-file", match=r"vllm/odd\.txt is not text") as caught:
        release.open(wheel).read("vllm/odd.txt")
    assert caught.value.where == "vllm/odd.txt:2"
    assert release.open(sdist).read("csrc/x.cu") == "int x;\n"
    assert release.store.download(sdist.sha256).exists()


@pytest.mark.parametrize("quirk", ["ranges", "hashes"])
def test_wheel_is_downloaded_and_verified_when_the_index_lacks_ranges_or_hashes(release: Release, quirk: str) -> None:
    wheel = release.locked[0]
    setattr(release.index, quirk, False)
    assert release.open(wheel).read("vllm/x.py") is not None
    assert release.store.download(wheel.sha256).exists()
    release.index.server.close()
    local = ReleaseSource(wheel, Indexes(IndexConfig(indexes=("file:///nothing",))), release.store)
    assert local.read("vllm/__init__.py") == ""


def test_other_file_of_the_same_name_is_refused(release: Release) -> None:
    other = release.locked[0].model_copy(update={"sha256": "0" * 64})
    with raises("source-missing", match="is on no configured index"):
        release.open(other).read("vllm/x.py")
    release.index.hashes = False
    with raises("wrong-digest", match="is not the file that was locked"):
        release.open(other).read("vllm/x.py")


def test_folder_source_reads_only_below_its_folder(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_bytes(b"a\r\n")
    source = FolderSource(tmp_path)
    assert source.read("x.py") == "a\r\n"
    assert source.read("y.py") is None
    assert source.read("/usr/share/imagefactory/mods/x") is None
