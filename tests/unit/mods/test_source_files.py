"""The archives that mods are checked against are pinned by hash, and read in places where that is possible."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from imagefactory.environment.index_config import IndexConfig
from imagefactory.errors.locks import WheelMissingError
from imagefactory.errors.mods import ModFileError, SourceMissingError
from imagefactory.errors.store import DigestMismatchError
from imagefactory.locks.files import LockedSource
from imagefactory.mods.source_files import (
    FolderSource,
    ReleaseSource,
    git_source,
    package_files,
    package_hash,
    source_variable,
)
from imagefactory.resolve.release_archives import lock_sources
from imagefactory.store.cache import Store
from imagefactory.store.indexes import Indexes
from images.shipped.mods.manifest import GitSource
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory, sha256_of_file

FILES: dict[str, bytes | str] = {
    "vllm/__init__.py": "",
    "vllm/x.py": "one = 1\r\ntwo = 2\n",
    "vllm/big.bin": b"\xff" * 1_500_000,
    "vllm/odd.txt": b"fine\n\xff\n",
}


def make_sdist(folder: Path, files: Mapping[str, bytes | str], version: str = "1.0") -> Path:
    path = folder / f"vllm-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(f"vllm-{version}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def index(simple_index: SimpleIndex, wheel_factory: WheelFactory) -> SimpleIndex:
    """Offer a release of vLLM as two wheels and an sdist, and an older one as a wheel alone."""
    tags = ("cp38-abi3-manylinux1_x86_64", "cp38-abi3-manylinux2_aarch64")
    simple_index.add(
        *(wheel_factory("vllm", "1.0", files=FILES, tag=tag, stored=True) for tag in tags),
        wheel_factory("vllm", "0.9", files=FILES),
        make_sdist(wheel_factory.folder, {**FILES, "csrc/x.cu": "int x;\n"}),
    )
    return simple_index


def indexes(index: SimpleIndex) -> Indexes:
    return Indexes(IndexConfig(indexes=(index.url,)))


@pytest.fixture
def locked(index: SimpleIndex) -> list[LockedSource]:
    return lock_sources("vllm", "1.0", indexes(index))


def test_one_wheel_and_the_sdist_of_a_release_are_pinned(
    index: SimpleIndex, locked: list[LockedSource]
) -> None:
    assert [source.file for source in locked] == [
        "vllm-1.0-cp38-abi3-manylinux1_x86_64.whl",
        "vllm-1.0.tar.gz",
    ]
    for source in locked:
        assert source.sha256 == sha256_of_file(index.files[source.file])
        assert source.size == index.files[source.file].stat().st_size
    assert index.bytes_served(locked[0].file) < 100_000


def test_a_release_without_an_sdist_or_a_wheel_is_an_error(index: SimpleIndex) -> None:
    with pytest.raises(WheelMissingError, match=r"lacks the sdist of vllm 0\.9"):
        lock_sources("vllm", "0.9", indexes(index))
    with pytest.raises(WheelMissingError, match=r"lacks the wheel of vllm 0\.8"):
        lock_sources("vllm", "0.8", indexes(index))


@pytest.mark.parametrize("number", [0, 1])
def test_files_are_read_with_their_line_ends_and_remembered(
    index: SimpleIndex, locked: list[LockedSource], tmp_path: Path, number: int
) -> None:
    store = Store(tmp_path / "store")
    source = ReleaseSource(locked[number], indexes(index), store)
    assert source.read("vllm/x.py") == "one = 1\r\ntwo = 2\n"
    assert source.read("vllm/none.py") is None
    asked = len(index.log)
    again = ReleaseSource(locked[number], indexes(index), store)
    assert again.read("vllm/x.py") == "one = 1\r\ntwo = 2\n"
    assert again.read("vllm/none.py") is None
    assert len(index.log) == asked


def test_a_wheel_is_read_in_places_and_an_sdist_whole(
    index: SimpleIndex, locked: list[LockedSource], tmp_path: Path
) -> None:
    wheel, sdist = locked
    store = Store(tmp_path / "store")
    before = index.bytes_served(wheel.file)
    ReleaseSource(wheel, indexes(index), store).read("vllm/x.py")
    assert index.bytes_served(wheel.file) - before < 200_000 < wheel.size
    assert not store.download(wheel.sha256).exists()
    assert ReleaseSource(sdist, indexes(index), store).read("csrc/x.cu") == "int x;\n"
    assert store.download(sdist.sha256).exists()


@pytest.mark.parametrize("quirk", ["ranges", "hashes"])
def test_a_wheel_is_fetched_whole_and_checked_where_ranges_or_hashes_are_not_to_be_had(
    index: SimpleIndex, locked: list[LockedSource], tmp_path: Path, quirk: str
) -> None:
    setattr(index, quirk, False)
    store = Store(tmp_path / "store")
    assert ReleaseSource(locked[0], indexes(index), store).read("vllm/x.py") is not None
    assert store.download(locked[0].sha256).exists()
    index.server.close()
    local = ReleaseSource(locked[0], Indexes(IndexConfig(indexes=("file:///nothing",))), store)
    assert local.read("vllm/__init__.py") == ""


def test_an_index_with_another_file_of_that_name_is_not_believed(
    index: SimpleIndex, locked: list[LockedSource], tmp_path: Path
) -> None:
    other = locked[0].model_copy(update={"sha256": "0" * 64})
    with pytest.raises(SourceMissingError, match="is on no configured index"):
        ReleaseSource(other, indexes(index), Store(tmp_path / "store")).read("vllm/x.py")
    index.hashes = False
    with pytest.raises(DigestMismatchError, match="is not the file that was locked"):
        ReleaseSource(other, indexes(index), Store(tmp_path / "store")).read("vllm/x.py")


def test_a_file_that_is_not_text_is_refused(
    index: SimpleIndex, locked: list[LockedSource], tmp_path: Path
) -> None:
    source = ReleaseSource(locked[0], indexes(index), Store(tmp_path / "store"))
    with pytest.raises(ModFileError, match=r"vllm/odd\.txt is not text") as caught:
        source.read("vllm/odd.txt")
    assert caught.value.where == "vllm/odd.txt:2"


def test_a_folder_is_read_below_itself_only(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_bytes(b"a\r\n")
    source = FolderSource(tmp_path)
    assert source.read("x.py") == "a\r\n"
    assert source.read("y.py") is None
    assert source.read("/usr/share/imagefactory/mods/x") is None


# --- git sources ---------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    package = tmp_path / "checkout" / "plugin"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "code.py").write_text("x = 1\n")
    (package / "__pycache__" / "code.cpython-311.pyc").write_bytes(b"\0")
    return package.parent


def git(sha256: str) -> GitSource:
    return GitSource(
        git="some-body/my.plug-in", commit="a" * 40, licence="MIT", package="plugin", sha256=sha256
    )


def test_a_git_source_is_found_by_a_variable_and_believed_by_its_hash(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = git(package_hash(checkout, "plugin"))
    assert source_variable(source.git) == "FACTORY_SOURCE_MY_PLUG_IN"
    assert git_source(source) is None
    monkeypatch.setenv(source_variable(source.git), str(checkout))
    found = git_source(source)
    assert found is not None
    assert found.read("plugin/code.py") == "x = 1\n"
    (checkout / "plugin" / "code.py").write_text("x = 2\n")
    with pytest.raises(DigestMismatchError, match=r"is not some-body/my\.plug-in at aaaaaaaaaaaa"):
        git_source(source)


def test_bytecode_is_no_part_of_a_package(checkout: Path) -> None:
    assert sorted(package_files(checkout, "plugin")) == ["plugin/__init__.py", "plugin/code.py"]
