"""Known layers: the digest before a build, and an error if a build has another result."""

import re
from pathlib import Path

import pytest

from imagefactory.oci.image import Blob
from imagefactory.plan.known_layers import KnownLayers, read_blob_record
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, Sha256
from tests.fixtures.failures import raises
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory

BLOB = Blob(Digest(f"sha256:{'1' * 64}"), Digest(f"sha256:{'2' * 64}"), 3, 4)


def key(digit: str) -> Sha256:
    return Sha256(digit * 64)


def test_a_layer_with_another_digest_fails_the_build(small_factory: SmallFactory) -> None:
    [built] = small_factory.build()
    record = small_factory.project.known_layers
    layer, blob = built.plan.layers[0], built.image.layers[0]
    text = record.read_text()
    record.write_text(text.replace(blob.diff_id, BLOB.diff_id))
    with raises("not-reproducible", match="base bookworm differs from its record") as caught:
        small_factory.build()
    assert layer.key in caught.value.where
    assert blob.diff_id in caught.value.why
    assert BLOB.diff_id in caught.value.why
    assert read_blob_record(layer.key, Store(small_factory.cache)) is None
    record.write_text(text)
    assert small_factory.build()[0].image == built.image


def test_layers_that_no_plan_needs_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "layers.toml"
    KnownLayers(path).add({key("a"): ("old", BLOB), key("b"): ("kept", BLOB)})
    KnownLayers(path).add({key("c"): ("new", BLOB)})
    assert KnownLayers(path).keep({key("b"), key("c")}) == 1
    known = KnownLayers(path)
    assert [known.blob(key(digit)) for digit in "abc"] == [None, BLOB, BLOB]
    before = path.stat()
    KnownLayers(path).add({})
    KnownLayers(path).keep({key("b"), key("c")})
    assert path.stat().st_mtime_ns == before.st_mtime_ns, "an unchanged record is not written"


def test_order_of_builds_does_not_change_the_record(tmp_path: Path) -> None:
    texts = []
    for order in ("ab", "ba"):
        path = tmp_path / order / "layers.toml"
        for digit in order:
            KnownLayers(path).add({key(digit): (f"layer {digit}", BLOB)})
        texts.append(path.read_text())
    assert texts[0] == texts[1]


def test_a_build_keeps_layers_that_a_concurrent_build_recorded(
    small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two builds read the record, then both write it."""
    path = small_factory.project.known_layers
    real = KnownLayers.__init__
    stale = KnownLayers(path)
    small_factory.build(SECOND)

    def first_read_is_stale(self: KnownLayers, file: Path) -> None:
        monkeypatch.setattr(KnownLayers, "__init__", real)
        vars(self).update(vars(stale), path=file)

    monkeypatch.setattr(KnownLayers, "__init__", first_read_is_stale)
    small_factory.build(CELL)
    names = re.findall(r'name = "(.*)"', path.read_text())
    assert {"model tiny", "model other"} <= set(names)


@pytest.mark.parametrize("text", ["not toml at all", "[[layers]]\nkey = 5\n", "surprise = 1\n"])
def test_an_invalid_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "layers.toml"
    path.write_text(text)
    with raises("bad-lock", match=r"layers\.toml cannot be read") as caught:
        KnownLayers(path)
    assert caught.value.where == str(path)
