"""Verifying an image finds every changed byte, and names the layer, the path and the field."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefactory.assemble import parallel
from imagefactory.assemble.assemble import Built
from imagefactory.assemble.layers.layer_blob import LayerWork, build_layer
from imagefactory.assemble.verify import verify
from imagefactory.check.smoke.contents import Contents
from imagefactory.check.smoke.levels import test_static
from imagefactory.errors import FactoryError
from imagefactory.oci.image import Blob
from imagefactory.plan.status import LAST_PLAN
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest
from imagefactory.store.progress import Progress
from tests.fixtures.failures import raises
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory


def run(factory: SmallFactory, digest: str | None = None) -> Digest:
    return verify(factory.project, CELL, factory.watch, digest=digest)


def refused(factory: SmallFactory, digest: str | None = None) -> FactoryError:
    with raises("rebuild-differs", match="not what its lock says") as caught:
        run(factory, digest)
    return caught.value


def flip(data: bytes) -> bytes:
    """Change one bit in the middle."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def change_mode(data: bytes) -> bytes:
    """Change the mode of /etc/motd in a tar file, and the checksum of its header."""
    at = data.index(b"etc/motd\0")
    header = bytearray(data[at : at + 512])
    header[100:108], header[148:156] = b"0000666\0", b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:at] + header + data[at + 512 :]


def test_untouched_image_verifies_and_nothing_is_left_behind(small_factory: SmallFactory, built: Built) -> None:
    def files() -> set[Path]:
        return {path for path in small_factory.cache.glob("**/*") if path.is_file() and path.suffix != ".lock"}

    before = files()
    assert run(small_factory) == built.image.digest
    assert run(small_factory, built.image.digest) == built.image.digest
    assert files() == before
    assert built.layout.manifest_digest() == built.image.digest


def test_verifying_does_not_trust_recorded_digests_but_a_build_does(
    small_factory: SmallFactory, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[Blob | None] = []

    def spy(work: LayerWork, store: Store, progress: Progress) -> Blob:
        expected.append(work.expected)
        return build_layer(work, store, progress)

    monkeypatch.setattr(parallel, "build_layer", spy)
    run(small_factory)
    assert set(expected) == {None}
    expected.clear()
    for layer in built.plan.layers:
        Store(small_factory.cache).layer(layer.key).unlink()
    small_factory.build()
    assert {blob.digest for blob in expected if blob} == {blob.digest for blob in built.image.layers}


def test_wrong_diff_id_on_record_is_found_by_verifying_and_by_smoke_tests(
    small_factory: SmallFactory, built: Built
) -> None:
    record, layer = small_factory.project.known_layers, built.plan.layers[0]
    wrong = f"sha256:{'0' * 64}"
    record.write_text(record.read_text().replace(built.image.layers[0].diff_id, wrong))
    Store(small_factory.cache).layer(layer.key).unlink()
    [taken_over] = small_factory.build()
    contents = Contents(taken_over.layout, small_factory.project.store)
    with pytest.raises(AssertionError, match=f"not to {wrong}"):
        test_static.test_layers_unpack_to_what_the_configuration_promises(taken_over.layout, contents)
    refused(small_factory)


@pytest.mark.parametrize("number", [0, 3, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2))])
def test_changed_byte_is_found_and_its_layer_named(small_factory: SmallFactory, built: Built, number: int) -> None:
    layer, blob = built.plan.layers[number], built.image.layers[number]
    path = built.layout.blob(blob.digest)
    path.write_bytes(flip(path.read_bytes()))
    error = refused(small_factory)
    assert error.where == f"layer {layer.kind} {layer.name}"
    assert f"the blob {blob.digest} has other bytes than its name says" in error.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda tar: tar.replace(b"a small base\n", b"a SMALL base\n"), "/etc/motd: sha256 is"),
        (change_mode, "/etc/motd: mode is 0666, a rebuild gives 0644"),
        (lambda tar: tar, "another compression"),
    ],
    ids=["content", "mode", "compression"],
)
def test_changed_layer_is_reported_by_path_and_field(
    small_factory: SmallFactory, built: Built, change: Callable[[bytes], bytes], why: str
) -> None:
    path = built.layout.blob(built.image.layers[0].digest)
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))
    assert why in refused(small_factory).why


def test_changed_document_and_missing_layer_are_found(small_factory: SmallFactory, built: Built) -> None:
    image = built.image
    for document, digest in (("manifest", image.digest), ("configuration", image.config_digest)):
        path = built.layout.blob(digest)
        data = path.read_bytes()
        path.write_bytes(data.replace(b"image", b"imagE", 1))
        error = refused(small_factory)
        assert document in error.where
        assert digest in error.why
        path.write_bytes(data)
    built.layout.blob(image.layers[1].digest).unlink()
    assert "it is missing" in refused(small_factory).why


def test_an_image_of_an_earlier_plan_is_stale_and_not_tampered_with(small_factory: SmallFactory, built: Built) -> None:
    small_factory.build(SECOND, output=built.layout.folder)
    with raises("stale-build", match="is not up to date"):
        run(small_factory)
    (built.layout.folder / LAST_PLAN).write_text(built.plan.model_dump_json(), "utf-8")
    error = refused(small_factory)
    assert error.where == "layer model tiny"
    assert "/opt: presence is missing, a rebuild gives there" in error.why


def test_given_digest_is_compared_and_without_one_an_image_is_needed(small_factory: SmallFactory) -> None:
    digest = f"sha256:{'0' * 64}"
    assert f"expected {digest}" in refused(small_factory, digest).why
    with raises("no-image"):
        run(small_factory)


def test_verifying_keeps_the_store_from_being_cleaned(
    small_factory: SmallFactory, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleaning must not take away the downloads that a rebuild reads."""
    refusals: list[str] = []

    def clean(_: object) -> None:
        with raises("cache-busy") as caught, Store(small_factory.cache).for_cleaning():
            pytest.fail("cleaned")
        refusals.append(caught.value.name)

    monkeypatch.setattr(small_factory.watch, "layers", clean)
    assert run(small_factory) == built.image.digest
    assert refusals
