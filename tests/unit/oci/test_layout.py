"""Layouts: an image on disk is complete or absent, and other files are left alone."""

from __future__ import annotations

import errno
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from imagefactory.oci.image import Image
from imagefactory.oci.layout import Layout, archive, write_archive, write_layout
from imagefactory.store.cache import Store
from imagefactory.store.digests import sha256_of
from tests.fixtures.failures import raises
from tests.fixtures.platforms import MACHINE
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory


def blobs(layout: Layout) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (layout.folder / "blobs/sha256").iterdir()}


@pytest.fixture
def image(small_factory: SmallFactory) -> Image:
    [built] = small_factory.build()
    return built.image


@pytest.fixture
def other(small_factory: SmallFactory) -> Image:
    [built] = small_factory.build(SECOND)
    return built.image


@pytest.fixture
def store(small_factory: SmallFactory) -> Store:
    return Store(small_factory.cache)


@pytest.fixture
def layout(image: Image, store: Store, tmp_path: Path) -> Layout:
    return write_layout(image, "name", store, tmp_path / "image")


def test_every_blob_matches_its_name(image: Image, store: Store, tmp_path: Path) -> None:
    layout = write_layout(image, "some-name", store, tmp_path / "image")
    assert all(sha256_of(data) == name for name, data in blobs(layout).items())
    assert layout.manifest_digest() == image.digest
    assert layout.config_digest() == image.config_digest
    assert layout.layer_digests() == [blob.digest for blob in image.layers]
    assert json.loads((layout.folder / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((layout.folder / "index.json").read_bytes())
    [manifest] = index["manifests"]
    assert manifest["platform"] == {"architecture": MACHINE, "os": "linux"}
    assert manifest["size"] == len(image.manifest)
    assert manifest["annotations"] == {"org.opencontainers.image.ref.name": "some-name"}


def test_blobs_are_hard_links_into_the_store(image: Image, store: Store, layout: Layout) -> None:
    assert layout.blob(image.digest).samefile(store.blob(image.digest))


def test_blobs_are_copied_when_links_are_impossible(
    image: Image, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    layout = write_layout(image, "name", store, tmp_path / "image")
    assert not layout.blob(image.digest).samefile(store.blob(image.digest))
    assert all(sha256_of(data) == name for name, data in blobs(layout).items())


def test_second_image_replaces_the_first_completely(other: Image, store: Store, layout: Layout) -> None:
    write_layout(other, "name", store, layout.folder)
    assert layout.manifest_digest() == other.digest
    expected = {other.digest, other.config_digest, *(blob.digest for blob in other.layers)}
    assert {f"sha256:{name}" for name in blobs(layout)} == expected


def test_spoiled_blob_is_replaced(image: Image, store: Store, layout: Layout) -> None:
    layout.blob(image.digest).unlink()
    layout.blob(image.digest).write_bytes(b"spoiled")
    write_layout(image, "name", store, layout.folder)
    assert layout.blob(image.digest).read_bytes() == image.manifest


def test_folder_with_other_files_is_left_alone(image: Image, store: Store, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    with raises("output-unusable", match="contains something else") as caught:
        write_layout(image, "name", store, home)
    assert "thesis.txt" in caught.value.why
    assert [path.name for path in home.iterdir()] == ["thesis.txt"]


def test_unwritable_folder_is_named(image: Image, store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises("output-unusable") as caught:
        write_layout(image, "name", store, tmp_path / "file" / "image")
    assert caught.value.where == str(tmp_path / "file" / "image")


def test_folder_has_one_of_two_images_when_stopped_at_any_step(
    image: Image, other: Image, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopping(real: object, steps: Iterator[int], last: int) -> object:
        def call(*args: object, **options: object) -> object:
            if next(steps) >= last:
                raise KeyboardInterrupt
            return real(*args, **options)  # type: ignore[operator]

        return call

    for last in range(12):
        layout = write_layout(image, "name", store, tmp_path / str(last))
        steps = iter(range(100))
        with monkeypatch.context() as patch:
            for name in ("replace", "unlink", "write_bytes"):
                patch.setattr(Path, name, stopping(getattr(Path, name), steps, last))
            with suppress(KeyboardInterrupt):
                write_layout(other, "name", store, layout.folder)
        digest = layout.manifest_digest()
        assert digest in {image.digest, other.digest}
        for needed in (digest, layout.config_digest(), *layout.layer_digests()):
            assert sha256_of(layout.blob(needed).read_bytes()) == needed.removeprefix("sha256:")
        assert write_layout(other, "name", store, layout.folder).manifest_digest() == other.digest


@pytest.mark.parametrize("index", ["{", "{}", '{"manifests": []}'])
def test_damaged_layout_is_named(tmp_path: Path, index: str) -> None:
    (tmp_path / "index.json").write_text(index)
    with raises("no-image", match="cannot be read"):
        Layout(tmp_path).manifest_digest()


def test_missing_layout_is_named(tmp_path: Path) -> None:
    with raises("no-image", match="There is no image here") as caught:
        Layout(tmp_path).layer_digests()
    assert "./inv build" in caught.value.fix


def test_archive_is_a_layout_that_docker_loads(image: Image, layout: Layout, tmp_path: Path) -> None:
    file = tmp_path / "image.tar"
    write_archive(archive(layout, "registry.example/name:tag"), file)
    with tarfile.open(file) as tar:
        names = tar.getnames()
        assert names == sorted(names)
        assert {"blobs", "blobs/sha256", "index.json", "manifest.json", "oci-layout"} <= set(names)
        contents = {
            member.name: tar.extractfile(member).read()  # type: ignore[union-attr]
            for member in tar
            if member.isfile()
        }
    [docker] = json.loads(contents["manifest.json"])
    assert docker["RepoTags"] == ["registry.example/name:tag"]
    assert sha256_of(contents[docker["Config"]]) == image.config_digest.removeprefix("sha256:")
    assert [f"blobs/sha256/{sha256_of(contents[path])}" for path in docker["Layers"]] == docker["Layers"]


def failing_with(error: BaseException, layout: Layout) -> Iterator[bytes]:
    yield from list(archive(layout, "a:b"))[:3]
    raise error


def test_old_archive_stays_when_a_new_one_is_interrupted(layout: Layout, tmp_path: Path) -> None:
    file = tmp_path / "image.tar"
    file.write_text("the old one")
    with pytest.raises(KeyboardInterrupt):
        write_archive(failing_with(KeyboardInterrupt(), layout), file)
    assert file.read_text() == "the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image", "image.tar", "small"]


def test_full_disk_is_named_and_leaves_no_archive(layout: Layout, tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with raises("disk-full"):
        write_archive(failing_with(full, layout), tmp_path / "image.tar")
    assert not list(tmp_path.glob("*.tar*")) + list(tmp_path.glob(".*"))


def test_missing_folder_for_an_archive_is_named(layout: Layout, tmp_path: Path) -> None:
    with raises("output-unusable", match="cannot be written there"):
        write_archive(archive(layout, "a:b"), tmp_path / "nowhere" / "image.tar")


def test_layout_of_a_build_has_its_plan(small_factory: SmallFactory) -> None:
    [built] = small_factory.build()
    plan = json.loads((small_factory.project.build_folder(CELL) / "plan.json").read_text())
    assert plan["key"] == built.plan.key
