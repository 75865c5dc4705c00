"""Layer blobs: any gzip reads them, and damaged sources stop the build."""

import gzip
import hashlib
import io
import os
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagefactory.oci.entry import Bytes, Content, DeflatedSlice, RawSlice
from imagefactory.oci.format import MEMBER_LIMIT, SPLICE_FROM
from imagefactory.oci.gzip import LayerBlob
from imagefactory.store.digests import Sha256, digest_of, sha256_of
from tests.fixtures.failures import raises

BIG = os.urandom(SPLICE_FROM) + bytes(3 * 1024 * 1024)
SMALL = b"small " * 100


def deflated(folder: Path, data: bytes, level: int = 6) -> DeflatedSlice:
    """Write a deflate stream into a file, as in a zip."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, -15)
    stream = compressor.compress(data) + compressor.flush()
    path = folder / f"{sha256_of(data)[:12]}-{level}.whl"
    path.write_bytes(b"PK.." + stream + b"the next member")
    return DeflatedSlice(path, 4, len(stream), zlib.crc32(data), len(data), sha256_of(data))


def written(*contents: Content) -> bytes:
    out = io.BytesIO()
    blob = LayerBlob(out)
    for content in contents:
        blob.add(content, "some/file")
    result = blob.finish()
    data = out.getvalue()
    assert result.digest == digest_of(data)
    assert result.size == len(data)
    raw = gzip.decompress(data)
    assert result.diff_id == digest_of(raw)
    assert result.unpacked == len(raw)
    return data


def members(data: bytes) -> list[bytes]:
    """Return the unpacked members of a gzip file."""
    found = []
    while data:
        inflater = zlib.decompressobj(31)
        found.append(inflater.decompress(data) + inflater.flush())
        data = inflater.unused_data
    return found


def test_large_file_is_copied_as_it_is(tmp_path: Path) -> None:
    content = deflated(tmp_path, BIG, level=1)
    stream = content.file.read_bytes()[content.offset : content.offset + content.deflated]
    data = written(Bytes(b"before"), content, Bytes(b"after"))
    assert members(data) == [b"before", BIG, b"after"]
    assert stream in data


def test_small_file_is_compressed_with_its_neighbours_whatever_its_wheel_did(tmp_path: Path) -> None:
    data = written(Bytes(b"before"), deflated(tmp_path, SMALL), Bytes(b"after"))
    assert members(data) == [b"before" + SMALL + b"after"]
    assert written(deflated(tmp_path, SMALL, level=1)) == written(deflated(tmp_path, SMALL, level=9))


@pytest.mark.parametrize("size", [SPLICE_FROM - 1, SPLICE_FROM])
def test_limit_between_small_and_large_is_exact(tmp_path: Path, size: int) -> None:
    data = written(Bytes(b"x"), deflated(tmp_path, b"a" * size))
    assert len(members(data)) == (1 if size < SPLICE_FROM else 2)


def test_members_end_at_fixed_offsets_however_data_arrives() -> None:
    data = os.urandom(MEMBER_LIMIT * 2 + 5)
    pieces = [Bytes(data[start : start + 70_001]) for start in range(0, len(data), 70_001)]
    assert [len(member) for member in members(written(*pieces))] == [MEMBER_LIMIT, MEMBER_LIMIT, 5]
    assert written(*pieces) == written(Bytes(data))
    assert written() == b""


def test_blob_is_read_by_other_programs(tmp_path: Path) -> None:
    file = tmp_path / "layer.gz"
    file.write_bytes(written(Bytes(b"one"), deflated(tmp_path, BIG), Bytes(b"two")))
    unpacked = subprocess.run(["zcat", str(file)], capture_output=True, check=True).stdout
    assert hashlib.sha256(unpacked).digest() == hashlib.sha256(b"one" + BIG + b"two").digest()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["bytes", "raw", "deflated"]), st.integers(0, 3 * SPLICE_FROM)), max_size=8))
def test_content_survives_from_any_mix_of_sources(tmp_path: Path, parts: list[tuple[str, int]]) -> None:
    contents: list[Content] = []
    expected = b""
    for number, (kind, size) in enumerate(parts):
        data = bytes([number]) * (size // 2) + os.urandom(size - size // 2)
        expected += data
        if kind == "raw":
            path = tmp_path / f"raw-{number}"
            path.write_bytes(b"skip" + data)
            contents.append(RawSlice(path, 4, size, sha256_of(data)))
        else:
            contents.append(Bytes(data) if kind == "bytes" else deflated(tmp_path, data))
    assert gzip.decompress(written(*contents)) == expected


Spoil = Callable[[DeflatedSlice], DeflatedSlice]


def cut(content: DeflatedSlice) -> DeflatedSlice:
    """Truncate the file in the middle of the stream."""
    os.truncate(content.file, content.offset + content.deflated // 2)
    return content


def garble(content: DeflatedSlice) -> DeflatedSlice:
    data = bytearray(content.file.read_bytes())
    for place in range(content.offset, content.offset + 40):
        data[place] ^= 0x5A
    content.file.write_bytes(bytes(data))
    return content


WRONG: dict[str, Spoil] = {
    "another checksum in the zip directory": lambda content: replace(content, crc32=content.crc32 ^ 1),
    "a size that is too small: a bomb": lambda content: replace(content, size=content.size - 1000),
    "a size that is too large": lambda content: replace(content, size=content.size + 1),
    "a stream that goes on in the next member": lambda content: replace(content, deflated=content.deflated - 9),
    "bytes after the stream": lambda content: replace(content, deflated=content.deflated + 3),
    "a file that ends too early": cut,
    "a stream of other bytes": garble,
    "a RECORD that lies": lambda content: replace(content, sha256=Sha256("0" * 64)),
}


@pytest.mark.parametrize("data", [SMALL * 10, BIG], ids=["small", "large"])
@pytest.mark.parametrize("spoil", WRONG.values(), ids=WRONG)
def test_member_is_refused_when_it_contradicts_its_wheel(tmp_path: Path, data: bytes, spoil: Spoil) -> None:
    content = spoil(deflated(tmp_path, data))
    with raises("damaged-file", match="some/file") as caught:
        written(content)
    assert caught.value.where == str(content.file)
    assert "RECORD" in caught.value.what or "cannot be read" in caught.value.what


def test_bomb_is_refused_before_it_is_inflated(tmp_path: Path) -> None:
    bomb = deflated(tmp_path, bytes(20 * 1024 * 1024), level=9)
    blob = LayerBlob(io.BytesIO())
    with raises("damaged-file"):
        blob.add(replace(bomb, size=SPLICE_FROM), "bomb")
    assert blob.unpacked == 0


def test_stored_content_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "stored.whl"
    path.write_bytes(BIG)
    with raises("damaged-file", match="not what its wheel's RECORD says"):
        written(RawSlice(path, 0, len(BIG), Sha256("1" * 64)))
    with raises("damaged-file", match="cannot be read"):
        written(RawSlice(path, 10, len(BIG), sha256_of(BIG)))
