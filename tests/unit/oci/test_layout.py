"""Layouts: an image on disk is complete or absent, and other files are left alone."""

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
from tests.fixtures.small_factory import SECOND, SmallFactory


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


def test_every_blob_is_a_hard_link_into_the_store_and_matches_its_name(
    image: Image, store: Store, tmp_path: Path
) -> None:
    layout = write_layout(image, "some-name", store, tmp_path / "image")
    assert all(sha256_of(data) == name for name, data in blobs(layout).items())
    assert layout.blob(image.digest).samefile(store.blob(image.digest))
    assert layout.manifest_digest() == image.digest
    assert layout.config_digest() == image.config_digest
    assert layout.layer_digests() == [blob.digest for blob in image.layers]
    assert json.loads((layout.folder / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((layout.folder / "index.json").read_bytes())
    [manifest] = index["manifests"]
    assert manifest["platform"] == {"architecture": MACHINE, "os": "linux"}
    assert manifest["size"] == len(image.manifest)
    assert manifest["annotations"] == {"org.opencontainers.image.ref.name": "some-name"}


def test_blobs_are_copied_when_links_are_impossible(
    image: Image, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    layout = write_layout(image, "name", store, tmp_path / "image")
    assert not layout.blob(image.digest).samefile(store.blob(image.digest))
    assert all(sha256_of(data) == name for name, data in blobs(layout).items())


def test_second_image_replaces_the_first_and_spoiled_blobs_completely(
    other: Image, store: Store, layout: Layout
) -> None:
    layout.blob(other.digest).write_bytes(b"spoiled")
    write_layout(other, "name", store, layout.folder)
    assert layout.manifest_digest() == other.digest
    assert layout.blob(other.digest).read_bytes() == other.manifest
    expected = {other.digest, other.config_digest, *(blob.digest for blob in other.layers)}
    assert {f"sha256:{name}" for name in blobs(layout)} == expected


def test_folder_has_one_of_two_images_when_stopped_at_any_step(
    image: Image, other: Image, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 0

    def stopping(real: object) -> object:
        def call(*args: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return real(*args, **options)  # type: ignore[operator]

        return call

    for step in range(12):
        layout = write_layout(image, "name", store, tmp_path / f"stopped-{step}")
        left = step
        with monkeypatch.context() as patch:
            for name in ("replace", "unlink", "write_bytes"):
                patch.setattr(Path, name, stopping(getattr(Path, name)))
            with suppress(KeyboardInterrupt):
                write_layout(other, "name", store, layout.folder)
        digest = layout.manifest_digest()
        assert digest in {image.digest, other.digest}, step
        for needed in (digest, layout.config_digest(), *layout.layer_digests()):
            assert sha256_of(layout.blob(needed).read_bytes()) == needed.removeprefix("sha256:"), step
        assert write_layout(other, "name", store, layout.folder).manifest_digest() == other.digest


def test_damaged_or_missing_layout_is_named(tmp_path: Path) -> None:
    with raises("no-image", match="There is no image here") as caught:
        Layout(tmp_path).layer_digests()
    assert "./inv build" in caught.value.fix
    for index in ("{", "{}", '{"manifests": []}'):
        (tmp_path / "index.json").write_text(index)
        with raises("no-image", match="cannot be read"):
            Layout(tmp_path).manifest_digest()


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


def test_image_that_cannot_be_written_leaves_the_old_archive_and_nothing_else(
    image: Image, store: Store, layout: Layout, tmp_path: Path
) -> None:
    file = tmp_path / "image.tar"
    file.write_text("the old one")
    with pytest.raises(KeyboardInterrupt):
        write_archive(failing_with(KeyboardInterrupt(), layout), file)
    with raises("disk-full"):
        write_archive(failing_with(OSError(errno.ENOSPC, "No space left on device"), layout), file)
    with raises("output-unusable", match="cannot be written there"):
        write_archive(archive(layout, "a:b"), file / "image.tar")
    with raises("output-unusable") as caught:
        write_layout(image, "name", store, file / "image")
    assert caught.value.where == str(file / "image")
    assert file.read_text() == "the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image", "image.tar", "small"]
