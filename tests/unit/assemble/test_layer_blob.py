"""Layers are sorted, have one owner for each path, and leave no blob if something is wrong."""

import os
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagefactory.assemble.layers.layer_blob import LayerWork, build_layer
from imagefactory.oci.entry import DeflatedSlice
from imagefactory.oci.format import SPLICE_FROM
from imagefactory.oci.image import Blob
from imagefactory.oci.listing import ListedPath, read_listing
from imagefactory.plan.known_layers import read_blob_record, read_owners
from imagefactory.plan.plan import Input, WheelLayer, WheelSettings
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, sha256_of
from tests.fixtures.failures import raises
from tests.fixtures.wheels import WheelFactory
from tests.unit.assemble.test_wheel_layer import lie

SITE = "opt/venv/lib/python3.11/site-packages"
LARGE = random.Random(7).randbytes(80_000)
KEY = Sha256("ab" * 32)


def layer_of(wheels: Iterable[Path], **settings: Any) -> WheelLayer:
    inputs = tuple(Input(name=wheel.name, sha256=sha256_of(wheel.read_bytes())) for wheel in wheels)
    given = WheelSettings(venv="opt/venv", python="3.11", **settings)
    return WheelLayer.of("pure-bundle", f"{len(inputs)} wheels", inputs, given).model_copy(update={"key": KEY})


def build(store: Store, *wheels: Path, expected: Blob | None = None, **settings: Any) -> Blob:
    files = {Sha256(sha256_of(wheel.read_bytes())): wheel for wheel in wheels}
    return build_layer(LayerWork(layer_of(wheels, **settings), files, expected), store, lambda _: None)


def listing(store: Store, blob: Blob) -> dict[str, ListedPath]:
    return {entry.path: entry for entry in read_listing(store.blob(blob.digest))}


def nothing_is_left(store: Store) -> bool:
    left = [path.name for path in store.root.glob("**/*") if path.is_file()]
    return set(left) <= {".lock"}


def test_layer_is_sorted_complete_and_recorded(store: Store, wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("one", files={"one/b.py": "", "one/a.py": "x = 1\n", "one/big.bin": LARGE})
    blob = build(store, wheel)
    paths = listing(store, blob)
    assert list(paths) == sorted(paths, key=str.encode)
    assert [path for path, entry in paths.items() if entry.kind == "directory"] == [
        "opt", "opt/venv", "opt/venv/lib", "opt/venv/lib/python3.11", SITE, f"{SITE}/one", f"{SITE}/one-1.0.dist-info",
    ]  # fmt: skip
    assert {entry.mtime for entry in paths.values()} == {315619200}
    assert {(entry.uid, entry.gid) for entry in paths.values()} == {(0, 0)}
    assert paths[f"{SITE}/one/big.bin"].sha256 == sha256_of(LARGE)
    assert read_blob_record(KEY, store) == blob
    owners = read_owners(KEY, store)
    assert set(owners.values()) == {wheel.name}
    assert set(owners) == {path for path, entry in paths.items() if entry.kind == "file"}


def test_record_without_its_whole_blob_is_ignored(store: Store, wheel_factory: WheelFactory) -> None:
    blob = build(store, wheel_factory("one"))
    os.truncate(store.blob(blob.digest), blob.size - 1)
    assert read_blob_record(KEY, store) is None
    for text in ("{", "{}"):
        store.layer(KEY).write_text(text)
        assert read_blob_record(KEY, store) is None


def test_file_that_wheels_share_occurs_once(store: Store, wheel_factory: WheelFactory) -> None:
    one = wheel_factory("one", files={"shared/__init__.py": "", "shared/one.py": ""})
    two = wheel_factory("two", files={"shared/__init__.py": "", "shared/two.py": ""})
    assert {f"{SITE}/shared/{name}.py" for name in ("__init__", "one", "two")} <= set(
        listing(store, build(store, one, two))
    )


@pytest.mark.parametrize(
    "other",
    [
        {"files": {"shared.py": "OTHER = 2\n"}},
        {"files": {"shared.py": LARGE}},
        {"files": {"shared.py": "ONE = 1\n"}, "executable": ["shared.py"]},
    ],
    ids=["small", "large", "mode"],
)
def test_wheels_that_disagree_about_a_path_are_refused(
    store: Store, wheel_factory: WheelFactory, other: dict[str, Any]
) -> None:
    wheels = wheel_factory("one", files={"shared.py": "ONE = 1\n"}), wheel_factory("two", **other)
    with raises("duplicate-path", match=rf"/{SITE}/shared\.py") as caught:
        build(store, *wheels)
    assert caught.value.where == "layer pure-bundle 2 wheels"
    assert nothing_is_left(store)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"files": {"a.bin": LARGE}, "record": lie}, "damaged-file"),
        ({"files": {"a.bin": b"x"}, "record": lie}, "damaged-file"),
        ({"files": {"a.bin": LARGE}, "record": lie, "stored": True}, "damaged-file"),
        ({"record": lambda _: None}, "bad-wheel"),
    ],
    ids=["wrong hash, large", "wrong hash, small", "wrong hash, stored", "no RECORD"],
)
def test_failed_build_leaves_no_blob(
    store: Store, wheel_factory: WheelFactory, options: dict[str, object], error: str
) -> None:
    with raises(error):
        build(store, wheel_factory("wrong", "1.0", **options))
    assert nothing_is_left(store)


@pytest.fixture
def mixed_wheel(wheel_factory: WheelFactory) -> Path:
    """A wheel of which one file is copied and others are not."""
    return wheel_factory("mixed", files={"small.py": "x = 1\n", "large.bin": LARGE, "zeros.bin": bytes(90_000)})


def test_known_layer_is_copied_without_inflating_it(
    store: Store, mixed_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_into = build(store, mixed_wheel)
    inflate = DeflatedSlice.blocks
    monkeypatch.setattr(
        DeflatedSlice,
        "blocks",
        lambda it, *given, **named: pytest.fail("inflated") if it.size >= SPLICE_FROM else inflate(it, *given, **named),
    )
    other = Store(tmp_path / "other")
    assert build(other, mixed_wheel, expected=looked_into) == looked_into
    assert other.blob(looked_into.digest).read_bytes() == store.blob(looked_into.digest).read_bytes()
    assert read_blob_record(KEY, other) == looked_into


@pytest.mark.parametrize("wrong", [{"digest": f"sha256:{'0' * 64}"}, {"size": 7}, {"unpacked": 7}])
def test_layer_that_differs_from_the_expected_is_checked_in_full(
    store: Store, mixed_wheel: Path, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    true = build(store, mixed_wheel)
    other = Store(tmp_path / "other")
    assert build(other, mixed_wheel, expected=replace(true, **wrong)) == true
    assert [path.name for path in other.blob(true.digest).parent.iterdir()] == [true.digest.partition(":")[2]]


def test_progress_is_reported_in_bytes(store: Store, wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("large", files={f"{number}.bin": bytes(5_000_000) for number in range(4)})
    told: list[int] = []
    files = {Sha256(sha256_of(wheel.read_bytes())): wheel}
    blob = build_layer(LayerWork(layer_of([wheel]), files), store, told.append)
    assert told == sorted(told)
    assert len(told) > 1
    assert told[-1] <= blob.unpacked
