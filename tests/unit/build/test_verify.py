"""Verifying: one changed byte is found, and the layer, the path and the field are named."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagefactory.build import parallel
from imagefactory.build.assemble import Built
from imagefactory.build.layers.layer_blob import build_layer
from imagefactory.build.verify import verify
from imagefactory.errors.layers import ImageMissingError, NotReproducibleError, VerificationError
from imagefactory.errors.store import DownloadError
from imagefactory.oci.blob import Blob
from imagefactory.oci.layout import Layout
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory
from tests.smoke import test_static


@pytest.fixture
def built(small_factory: SmallFactory) -> Built:
    [built] = small_factory.build()
    return built


def run(factory: SmallFactory, digest: str | None = None) -> Digest:
    return verify(factory.project, CELL, factory.watch, factory.said.append, digest=digest)


def spoil(path: Path, change: bytes | None = None) -> None:
    """Change a file in place, as a broken disk or a bad neighbour does; links see it, too."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(change if change is not None else bytes(data))


def replace_in_layer(path: Path, old: bytes, new: bytes) -> None:
    data = gzip.decompress(path.read_bytes())
    assert data.count(old) == 1
    path.write_bytes(gzip.compress(data.replace(old, new)))


def test_an_untouched_image_verifies(small_factory: SmallFactory, built: Built) -> None:
    assert run(small_factory) == built.image.digest
    assert run(small_factory, built.image.digest) == built.image.digest


def test_a_build_is_content_with_the_recorded_digest_and_verifying_is_not(
    small_factory: SmallFactory, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[Blob | None] = []

    def spy(*arguments: Any, **options: Any) -> Blob:
        expected.append(options["expected"])
        return build_layer(*arguments, **options)

    monkeypatch.setattr(parallel, "build_layer", spy)
    run(small_factory)
    assert set(expected) == {None}
    expected.clear()
    for layer in built.plan.layers:
        Store(small_factory.cache).layer(layer.key).unlink()
    small_factory.build()
    assert {blob.digest for blob in expected if blob} == {blob.digest for blob in built.image.layers}


def test_a_record_that_is_wrong_about_the_unpacked_layer_is_found_by_verifying_and_by_the_smoke_tests(
    small_factory: SmallFactory, built: Built
) -> None:
    record, layer = small_factory.project.known_layers, built.plan.layers[0]
    wrong = f"sha256:{'0' * 64}"
    record.write_text(record.read_text().replace(built.image.layers[0].diff_id, wrong))
    Store(small_factory.cache).layer(layer.key).unlink()
    [taken_over] = small_factory.build()
    image = SimpleNamespace(layout=taken_over.layout.folder)
    with pytest.raises(AssertionError, match=f"not to {wrong}"):
        test_static.test_layers_unpack_to_what_the_configuration_promises(image, lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(VerificationError):
        run(small_factory)


def test_verifying_leaves_nothing_behind(small_factory: SmallFactory, built: Built) -> None:
    store = Store(small_factory.cache)
    before = {path: path.stat().st_ino for path in store.root.glob("**/*") if path.is_file()}
    run(small_factory)
    after = {path: path.stat().st_ino for path in store.root.glob("**/*") if path.is_file()}
    assert {path for path in after.keys() - before.keys() if path.suffix != ".lock"} == set()
    assert built.layout.manifest_digest() == built.image.digest


@pytest.mark.parametrize("number", range(4))
def test_one_changed_byte_in_a_layer_is_found_and_the_layer_named(
    small_factory: SmallFactory, built: Built, number: int
) -> None:
    layer, blob = built.plan.layers[number], built.image.layers[number]
    spoil(built.layout.blob(blob.digest))
    with pytest.raises(VerificationError) as caught:
        run(small_factory)
    assert caught.value.where == f"layer {layer.kind} {layer.name}"
    assert f"the blob {blob.digest} has other bytes than its name says" in caught.value.why


def test_another_content_is_named_by_path_and_field(small_factory: SmallFactory, built: Built) -> None:
    replace_in_layer(built.layout.blob(built.image.layers[0].digest), b"a small base\n", b"a SMALL base\n")
    with pytest.raises(VerificationError) as caught:
        run(small_factory)
    assert "/etc/motd: sha256 is" in caught.value.why


def test_another_mode_is_named(small_factory: SmallFactory, built: Built) -> None:
    path = built.layout.blob(built.image.layers[0].digest)
    data = bytearray(gzip.decompress(path.read_bytes()))
    at = data.index(b"etc/motd\0")
    data[at + 100 : at + 108] = b"0000666\0"
    header = bytes(data[at : at + 148]) + b" " * 8 + bytes(data[at + 156 : at + 512])
    data[at + 148 : at + 156] = b"%06o\0 " % sum(header)
    path.write_bytes(gzip.compress(bytes(data)))
    with pytest.raises(VerificationError) as caught:
        run(small_factory)
    assert "/etc/motd: mode is 0666, a rebuild gives 0644" in caught.value.why


def test_another_compression_is_told_from_another_content(small_factory: SmallFactory, built: Built) -> None:
    path = built.layout.blob(built.image.layers[0].digest)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())))
    with pytest.raises(VerificationError) as caught:
        run(small_factory)
    assert "another compression" in caught.value.why


@pytest.mark.parametrize("document", ["manifest", "configuration"])
def test_changed_documents_are_found(small_factory: SmallFactory, built: Built, document: str) -> None:
    image = built.image
    digest = image.digest if document == "manifest" else image.config_digest
    data = image.manifest if document == "manifest" else image.config
    spoil(built.layout.blob(digest), data.replace(b"image", b"imagE", 1))
    with pytest.raises(VerificationError, match="not what its lock says") as caught:
        run(small_factory)
    assert document in caught.value.where
    assert digest in caught.value.why


def test_a_missing_layer_is_found(small_factory: SmallFactory, built: Built) -> None:
    built.layout.blob(built.image.layers[1].digest).unlink()
    with pytest.raises(VerificationError) as caught:
        run(small_factory)
    assert "it is missing" in caught.value.why


def test_an_image_of_another_lock_is_told_where_it_differs(small_factory: SmallFactory, built: Built) -> None:
    small_factory.build(SECOND, output=built.layout.folder)
    with pytest.raises(VerificationError) as caught:
        run(small_factory)
    assert caught.value.where == "layer model tiny"
    assert "/opt: presence is missing, a rebuild gives there" in caught.value.why


def test_a_digest_of_somebody_else_is_compared(small_factory: SmallFactory) -> None:
    with pytest.raises(VerificationError) as caught:
        run(small_factory, f"sha256:{'0' * 64}")
    assert f"expected sha256:{'0' * 64}" in caught.value.why


def test_without_an_image_and_without_a_digest_there_is_nothing_to_verify(
    small_factory: SmallFactory,
) -> None:
    with pytest.raises(ImageMissingError):
        run(small_factory)


def test_a_wrong_record_is_found_by_verifying(small_factory: SmallFactory, built: Built) -> None:
    record = small_factory.project.known_layers
    record.write_text(record.read_text().replace(built.image.layers[0].diff_id, f"sha256:{'0' * 64}"))
    with pytest.raises(NotReproducibleError):
        run(small_factory)


def test_verifying_holds_the_store(small_factory: SmallFactory, built: Built) -> None:
    """Cleaning must not take away the downloads that a rebuild reads."""
    seen: list[bool] = []

    class Watch:
        def layers(self, _: object) -> None:
            try:
                with Store(small_factory.cache).for_cleaning():
                    seen.append(False)
            except Exception:  # noqa: BLE001 - whatever keeps it away
                seen.append(True)

        def state(self, *_: object) -> None: ...

    verify(small_factory.project, CELL, Watch(), small_factory.said.append)
    assert seen == [True]
    assert Layout(built.layout.folder).manifest_digest() == built.image.digest


def test_a_vanished_input_stops_verifying(small_factory: SmallFactory, built: Built) -> None:
    for file in (*small_factory.mirror.glob("**/*.deb"), *(small_factory.cache / "downloads").glob("*/*")):
        file.unlink()
    with pytest.raises(DownloadError):
        run(small_factory, built.image.digest)
