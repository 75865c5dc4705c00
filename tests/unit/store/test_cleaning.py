"""Cleaning: the least recently used files go first, and none while a build is running."""

import os
import time
from pathlib import Path

from imagefactory.oci.image import Blob
from imagefactory.plan.known_layers import mark_layers_used, read_blob_record
from imagefactory.store.cache import DAY, Store, clean
from imagefactory.store.digests import Digest, Sha256
from tests.fixtures.small_factory import SmallFactory


def put(store: Store, name: str, *, days: float, size: int = 1000) -> Path:
    path = store.download(Sha256(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    then = time.time() - days * DAY
    os.utime(path, (then, then))
    return path


def test_files_not_used_for_long_are_removed(store: Store) -> None:
    old, new = put(store, "old", days=40), put(store, "new", days=10)
    assert clean(store, older_than=30, dry_run=True).freed == 1000
    assert old.exists()
    cleaned = clean(store, older_than=30)
    assert (old.exists(), new.exists()) == (False, True)
    assert (cleaned.files, cleaned.freed, cleaned.kept) == (1, 1000, 1000)


def test_everything_is_removed_without_a_limit(small_factory: SmallFactory) -> None:
    small_factory.build()
    store = Store(small_factory.cache)
    clean(store)
    left = [path for path in store.root.glob("**/*") if path.is_file()]
    recent_locks = {".in-use", ".recording", "scratch", "layers", "downloads"}
    assert {path.relative_to(store.root).parts[0] for path in left} <= recent_locks
    assert not any(path.stat().st_size for path in left)


def test_stale_locks_and_unfinished_files_are_removed_but_not_counted(store: Store) -> None:
    stale = [put(store, name, days=1) for name in ("x.lock", ".writing-1")]
    fresh = [put(store, name, days=0) for name in ("y.lock", ".writing-2")]
    cleaned = clean(store, older_than=30)
    assert (cleaned.files, cleaned.kept) == (0, 0)
    assert [path.exists() for path in stale + fresh] == [False, False, True, True]


def test_layer_stays_when_a_build_has_used_it(small_factory: SmallFactory) -> None:
    [built] = small_factory.build()
    store = Store(small_factory.cache)
    for path in store.root.glob("**/*"):
        if path.is_file():
            os.utime(path, (0, 0))
    small_factory.build()
    clean(store, older_than=30)
    for layer, blob in zip(built.plan.layers, built.image.layers, strict=True):
        assert read_blob_record(layer.key, store) == blob
        assert store.owners(layer.key).exists()
    assert not [path for path in (store.root / "downloads").glob("*/*") if not path.suffix]


def test_marking_a_missing_layer_does_not_fail(store: Store) -> None:
    mark_layers_used({Sha256("a" * 64): Blob(Digest("sha256:b"), Digest("sha256:c"), 1, 1)}, store)


def test_compiled_tree_is_removed_as_a_whole(store: Store) -> None:
    folders = [store.root / "compile" / name for name in ("old", "new")]
    for folder, days in zip(folders, (40, 1), strict=True):
        (folder / "src").mkdir(parents=True)
        (folder / "src" / "kernel.cu").write_bytes(bytes(500))
        then = time.time() - days * DAY
        # Sources keep the dates of their archive, even after a compile.
        os.utime(folder / "src" / "kernel.cu", (1, 1))
        for path in (folder / "src", folder):
            os.utime(path, (then, then))
    cleaned = clean(store, older_than=30)
    assert [folder.exists() for folder in folders] == [False, True]
    assert (folders[1] / "src" / "kernel.cu").exists()
    assert (cleaned.freed, cleaned.kept) == (500, 500)


def test_link_in_a_tree_is_not_followed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    folder = store.root / "sources" / "o+r" / "v1"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "precious")
    clean(store)
    assert not folder.exists()
    assert (tmp_path / "precious").exists()
