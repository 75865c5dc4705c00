"""Known layers: the digest before the build, and a stop when a build gets another one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from imagefactory.errors.layers import NotReproducibleError
from imagefactory.errors.locks import LockFormatError
from imagefactory.oci.blob import Blob
from imagefactory.plan.built_layers import read_blob_record
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, Sha256
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory

BLOB = Blob(Digest(f"sha256:{'1' * 64}"), Digest(f"sha256:{'2' * 64}"), 3, 4)


def key(digit: str) -> Sha256:
    return Sha256(digit * 64)


def test_a_build_records_its_layers_and_the_digest_is_known_without_them(small_factory: SmallFactory) -> None:
    project = small_factory.project
    assert KnownLayers(project.known_layers).image(make_plan(project, CELL)) is None
    [built] = small_factory.build()
    assert KnownLayers(project.known_layers).image(make_plan(project, CELL)) == built.image


def test_the_record_does_not_change_with_the_order_of_builds(
    small_factory: SmallFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_factory.build(CELL)
    small_factory.build(SECOND)
    other = SmallFactory(tmp_path / "again")
    for name, value in other.environment().items():
        monkeypatch.setenv(name, value)
    other.build(SECOND, CELL)
    assert small_factory.project.known_layers.read_bytes() == other.project.known_layers.read_bytes()


def test_a_layer_that_comes_out_differently_stops_the_build(small_factory: SmallFactory) -> None:
    [built] = small_factory.build()
    record = small_factory.project.known_layers
    layer, blob = built.plan.layers[0], built.image.layers[0]
    text = record.read_text()
    record.write_text(text.replace(blob.diff_id, BLOB.diff_id))
    with pytest.raises(NotReproducibleError, match="base bookworm did not come out as recorded") as caught:
        small_factory.build()
    assert layer.key in caught.value.where
    assert blob.diff_id in caught.value.why
    assert BLOB.diff_id in caught.value.why
    assert read_blob_record(layer.key, Store(small_factory.cache)) is None, (
        "the cache would say the same again"
    )
    record.write_text(text)
    assert small_factory.build()[0].image == built.image


@pytest.mark.parametrize("field", ["diff_id", "digest", "size", "unpacked"])
def test_every_field_counts(tmp_path: Path, small_factory: SmallFactory, field: str) -> None:
    layer = make_plan(small_factory.project, CELL).layers[0]
    known = KnownLayers(tmp_path / "layers.toml")
    known.record({layer.key: ("a layer", BLOB)}, [])
    known.confirm(layer, BLOB)
    with pytest.raises(NotReproducibleError):
        known.confirm(layer, replace(BLOB, **{field: 99 if field in {"size", "unpacked"} else "sha256:0"}))  # type: ignore[arg-type]


def test_layers_that_no_plan_needs_any_more_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "layers.toml"
    KnownLayers(path).record({key("a"): ("old", BLOB), key("b"): ("kept", BLOB)}, [])
    assert KnownLayers(path).record({key("c"): ("new", BLOB)}, [key("b")])
    known = KnownLayers(path)
    assert [known.blob(key(digit)) for digit in "abc"] == [None, BLOB, BLOB]


def test_nothing_is_written_when_nothing_is_new(tmp_path: Path) -> None:
    path = tmp_path / "layers.toml"
    KnownLayers(path).record({key("a"): ("old", BLOB)}, [])
    path.chmod(0o444)
    before = path.stat()
    assert not KnownLayers(path).record({}, [key("a")])
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_build_keeps_what_another_one_added_in_the_meantime(
    small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two builds read the record, then both write it."""
    path = small_factory.project.known_layers
    real = KnownLayers.__init__
    stale = KnownLayers(path)
    small_factory.build(SECOND)

    def first_read_is_stale(self: KnownLayers, file: Path) -> None:
        monkeypatch.setattr(KnownLayers, "__init__", real)
        self.path, self._entries = file, dict(stale._entries)

    monkeypatch.setattr(KnownLayers, "__init__", first_read_is_stale)
    small_factory.build(CELL)
    names = re.findall(r'name = "(.*)"', path.read_text())
    assert {"model tiny", "model other"} <= set(names)


@pytest.mark.parametrize("text", ["not toml at all", "[[layers]]\nkey = 5\n", "surprise = 1\n"])
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "layers.toml"
    path.write_text(text)
    with pytest.raises(LockFormatError, match=r"layers\.toml cannot be read") as caught:
        KnownLayers(path)
    assert caught.value.where == str(path)
