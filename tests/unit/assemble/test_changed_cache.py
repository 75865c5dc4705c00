"""Files that were changed in the cache: no build, verification, export or load lets one through."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefactory.assemble.assemble import Built
from imagefactory.assemble.verify import verify
from imagefactory.errors import FactoryError
from imagefactory.oci.layout import archive, write_archive
from imagefactory.plan.plan import Layer
from imagefactory.store import digests as hashed
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, file_sha256, sha256_of
from tests.fixtures.failures import raises
from tests.fixtures.small_factory import CELL, SmallFactory
from tests.unit.assemble.test_verify import flip

LAYERS = range(4)


@pytest.fixture
def store(small_factory: SmallFactory) -> Store:
    return Store(small_factory.cache)


def poison(path: Path, change: Callable[[bytes], bytes] = flip) -> None:
    """Change a file in place; its size and the time of its last change stay."""
    before, data = path.stat(), path.read_bytes()
    path.write_bytes(change(data))
    assert path.stat().st_size == len(data)
    assert path.read_bytes() != data
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def forget(layers: tuple[Layer, ...], store: Store) -> None:
    """Remove layers from the cache."""
    for layer in layers:
        store.layer(layer.key).unlink()


def refused(step: Callable[[], object], file: Path) -> FactoryError:
    with raises("damaged-cache", match="not what its name says") as caught:
        step()
    assert caught.value.where == str(file.resolve())
    return caught.value


@pytest.mark.parametrize("recorded", [True, False])
def test_changed_deb_stops_a_build(small_factory: SmallFactory, built: Built, store: Store, *, recorded: bool) -> None:
    forget(built.plan.layers, store)
    known = small_factory.project.known_layers
    if not recorded:
        known.unlink()
    # A file in a Debian package, which has no checksum of its own.
    [deb] = small_factory.mirror.glob("**/base_*.deb")
    cached = store.download(sha256_of(deb.read_bytes()))
    poison(cached, lambda data: data.replace(b"a small base\n", b"an evil base\n"))
    assert file_sha256(cached) in refused(small_factory.build, cached).why
    assert known.exists() == recorded, "nothing new is recorded"


def test_verifying_hashes_every_input(small_factory: SmallFactory, built: Built, store: Store) -> None:
    files = [store.download(layer.inputs[-1].sha256) for layer in built.plan.layers if layer.inputs]
    assert len(files) > 2
    for file in files:
        content = file.read_bytes()
        poison(file)
        refused(lambda: verify(small_factory.project, CELL, small_factory.watch), file)
        file.write_bytes(content)
    verify(small_factory.project, CELL, small_factory.watch)


@pytest.mark.parametrize("number", LAYERS)
def test_changed_layer_stops_a_build(small_factory: SmallFactory, built: Built, store: Store, number: int) -> None:
    blob = store.blob(built.image.layers[number].digest)
    poison(blob)
    refused(small_factory.build, blob)
    blob.unlink()
    [again] = small_factory.build()
    assert again.image == built.image
    assert all(file_sha256(path) == path.name for path in (again.layout.folder / "blobs/sha256").iterdir())


def test_changed_documents_of_an_image_are_written_again(
    small_factory: SmallFactory, built: Built, store: Store
) -> None:
    for digest in (built.image.digest, built.image.config_digest):
        poison(store.blob(digest))
    small_factory.build()
    assert built.layout.blob(built.image.digest).read_bytes() == built.image.manifest
    assert built.layout.blob(built.image.config_digest).read_bytes() == built.image.config


def test_record_of_another_layer_is_refused(small_factory: SmallFactory, built: Built, store: Store) -> None:
    one, other = (store.layer(layer.key) for layer in built.plan.layers[:2])
    one.write_bytes(other.read_bytes())
    with raises("not-reproducible"):
        small_factory.build()


def test_changed_blob_is_not_exported(built: Built, tmp_path: Path) -> None:
    for blob in (built.layout.folder / "blobs" / "sha256").iterdir():
        content = blob.read_bytes()
        poison(blob, lambda data: data.replace(b"o", b"0", 1))
        refused(lambda: write_archive(archive(built.layout, "a:b"), tmp_path / "image.tar"), blob)
        assert not (tmp_path / "image.tar").exists()
        blob.write_bytes(content)
    write_archive(archive(built.layout, "a:b"), tmp_path / "image.tar")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Collect the files that are hashed."""
    files: list[Path] = []

    def spy(path: Path) -> Sha256:
        files.append(path)
        return file_sha256(path)

    monkeypatch.setattr(hashed, "file_sha256", spy)
    return files


def test_unchanged_layers_are_not_hashed_again(small_factory: SmallFactory, read: list[Path], tmp_path: Path) -> None:
    [built] = small_factory.build()
    read.clear()
    small_factory.build()
    small_factory.build(output=tmp_path / "elsewhere")
    small_factory.build()
    assert read == []
    Store(small_factory.cache).blob(built.image.layers[0].digest).touch()
    small_factory.build()
    assert [path.name for path in read] == [built.image.layers[0].digest.removeprefix("sha256:")]


@pytest.mark.parametrize("memory", ["", "[", "[[1, 2]]", "{}", '{"x": null}'])
def test_without_a_memory_everything_is_hashed(
    small_factory: SmallFactory, built: Built, read: list[Path], memory: str
) -> None:
    file = small_factory.cache / "facts" / "hashed.json"
    json.loads(file.read_text())
    file.write_text(memory)
    small_factory.build()
    assert len(set(read)) == len(built.image.layers) + 2
