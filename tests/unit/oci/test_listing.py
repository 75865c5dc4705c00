"""Listings of layers, whole and damaged."""

import gzip
import subprocess
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.errors import InputError
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.oci.gzip import LayerBlob
from imagefactory.oci.image import Blob
from imagefactory.oci.listing import cached_listing, read_layer, read_listing
from imagefactory.oci.tar import END, complete, header, padding
from imagefactory.store.cache import Store
from imagefactory.store.digests import digest_of, sha256_of


def write(path: Path, *entries: Entry) -> Blob:
    with path.open("wb") as file:
        blob = LayerBlob(file)
        for entry in complete(entries, owner="a test"):
            blob.write(header(entry))
            if entry.content is not None:
                blob.add(entry.content, entry.path)
                blob.write(padding(entry.content.size))
        blob.write(END)
        return blob.finish()


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    path = tmp_path / "layer"
    write(
        path,
        Entry(ImagePath("opt/file"), EntryKind.FILE, 0o755, Bytes(b"content")),
        Entry(ImagePath("opt/link"), EntryKind.SYMLINK, 0o777, target="file"),
        Entry(ImagePath("opt/same"), EntryKind.HARDLINK, 0o755, target="opt/file"),
        Entry(ImagePath("opt/big"), EntryKind.FILE, 0o644, Bytes(bytes(range(256)) * 9000), uid=3, gid=4),
    )
    return path


def test_every_path_is_listed_with_its_metadata(layer: Path) -> None:
    listing = {entry.path: entry for entry in read_listing(layer)}
    assert list(listing) == ["opt", "opt/big", "opt/file", "opt/link", "opt/same"]
    assert listing["opt"].kind == "directory"
    assert (listing["opt/file"].mode, listing["opt/file"].sha256) == ("0755", sha256_of(b"content"))
    assert (listing["opt/link"].kind, listing["opt/link"].target) == ("symlink", "file")
    assert (listing["opt/same"].kind, listing["opt/same"].target) == ("hard link", "opt/file")
    assert (listing["opt/big"].uid, listing["opt/big"].gid, listing["opt/big"].size) == (3, 4, 256 * 9000)


def test_listing_is_cached_by_digest_and_renewed_when_damaged(layer: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    digest = digest_of(layer.read_bytes())
    first = cached_listing(layer, digest, store)
    assert cached_listing(Path("/nowhere"), digest, store) == first
    [memory] = (store.root / "facts").glob("**/*.json")
    memory.write_text("[[1]")
    assert cached_listing(layer, digest, store) == first


@given(where=st.floats(0, 1), change=st.integers(1, 255))
def test_damage_is_reported_or_harmless(layer: Path, tmp_path: Path, where: float, change: int) -> None:
    data = bytearray(layer.read_bytes())
    data[min(int(where * len(data)), len(data) - 1)] ^= change
    spoiled = tmp_path / "spoiled"
    spoiled.write_bytes(bytes(data))
    reading = read_layer(spoiled)
    assert reading.digest == digest_of(bytes(data))
    try:
        assert tuple(read_listing(spoiled)) == reading.listing
    except InputError as error:
        assert error.where == str(spoiled)  # noqa: PT017 - the error is optional
        assert reading.fault


def test_one_pass_finds_digests_listing_and_files(tmp_path: Path) -> None:
    layer, kept = tmp_path / "layer", BytesIO()
    files = {"a": b"small", "big": bytes(range(256)) * 9000}
    blob = write(layer, *(Entry(ImagePath(path), EntryKind.FILE, 0o644, Bytes(data)) for path, data in files.items()))
    reading = read_layer(layer, {"big": kept}.get)
    assert (reading.digest, reading.diff_id, reading.fault) == (blob.digest, blob.diff_id, "")
    assert list(reading.listing) == list(read_listing(layer))
    assert kept.getvalue() == files["big"]


def test_what_follows_a_layer_changes_its_digests(layer: Path) -> None:
    before = read_layer(layer)
    with layer.open("ab") as file:
        file.write(gzip.compress(b"more"))
    after = read_layer(layer)
    assert (after.listing, after.fault) == (before.listing, "")
    assert after.diff_id != before.diff_id
    assert after.digest == digest_of(layer.read_bytes())


def test_what_is_no_tar_still_has_both_digests_and_a_missing_layer_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "layer").write_bytes(gzip.compress(b"no tar" * 1000))
    reading = read_layer(tmp_path / "layer")
    assert reading.fault.startswith("ReadError")
    assert reading.diff_id == digest_of(b"no tar" * 1000)
    missing = read_layer(tmp_path / "none")
    assert (missing.digest, missing.diff_id) == ("", "")
    assert missing.fault.startswith("FileNotFoundError")


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_a_file_with_holes_has_the_hash_of_its_whole_content(tmp_path: Path, form: str) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.seek(3_000_000)
        file.write(b"end")
    command = ["tar", "--sparse", f"--format={form}", "-C", str(tmp_path), "-czf", str(tmp_path / "layer")]
    subprocess.run([*command, "holes"], check=True)
    [entry] = read_layer(tmp_path / "layer").listing
    assert (entry.path, entry.size) == ("holes", 3_000_003)
    assert entry.sha256 == sha256_of(bytes(3_000_000) + b"end")
