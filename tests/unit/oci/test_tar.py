"""Tar headers: read by Python's tarfile, and compared with golden bytes."""

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath, RawSlice
from imagefactory.oci.format import MTIME
from imagefactory.oci.tar import BLOCK, END, complete, header, padding
from tests.fixtures.failures import raises


def file(path: str, data: bytes = b"", mode: int = 0o644, owner: int = 0) -> Entry:
    return Entry(ImagePath(path), EntryKind.FILE, mode, Bytes(data), uid=owner, gid=owner)


def only(entry: Entry) -> tarfile.TarInfo:
    """Read an archive of one entry."""
    stream = header(entry)
    if isinstance(entry.content, Bytes):
        stream += entry.content.data + padding(entry.content.size)
    with tarfile.open(fileobj=io.BytesIO(stream + END)) as tar:
        [member] = tar.getmembers()
        return member


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60)
PATHS = st.lists(NAMES.filter(lambda name: name not in {".", ".."}), min_size=1, max_size=8).map("/".join)


@given(path=PATHS, mode=st.integers(0, 0o7777), owner=st.integers(0, 0o7777777))
def test_file_survives_a_round_trip(path: str, mode: int, owner: int) -> None:
    member = only(file(path, b"content", mode, owner))
    assert (member.name, member.mode, member.uid, member.gid, member.size) == (path, mode, owner, owner, 7)
    assert (member.mtime, member.uname, member.gname) == (MTIME, "", "")


@given(path=PATHS, target=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_links_and_folders_survive_a_round_trip(path: str, target: str) -> None:
    symlink = only(Entry(ImagePath(path), EntryKind.SYMLINK, 0o644, target=target))
    assert (symlink.name, symlink.linkname, symlink.issym(), symlink.mode) == (path, target, True, 0o777)
    hard_link = only(Entry(ImagePath(path), EntryKind.HARDLINK, 0o644, target=target))
    assert (hard_link.name, hard_link.linkname, hard_link.islnk()) == (path, target, True)
    folder = only(Entry(ImagePath(path), EntryKind.DIRECTORY, 0o755))
    assert (folder.name, folder.isdir(), folder.size) == (path, True, 0)


@pytest.mark.parametrize(
    ("path", "blocks"),
    [
        pytest.param("a" * 100, 1, id="a name that fits"),
        pytest.param("a" * 101, 3, id="a name that is too long for any field"),
        pytest.param(f"{'d' * 155}/{'n' * 100}", 1, id="the longest prefix and name"),
        pytest.param(f"{'d' * 156}/{'n' * 100}", 3, id="a prefix that is too long"),
        pytest.param(f"{'d' * 10}/{'n' * 101}", 3, id="a name that no slash divides"),
        pytest.param("ü", 3, id="a letter that is not ASCII"),
    ],
)
def test_pax_is_used_only_when_ustar_does_not_suffice(path: str, blocks: int) -> None:
    written = header(file(path))
    assert len(written) == blocks * BLOCK
    assert only(file(path)).name == path


def test_folder_is_read_when_its_slash_does_not_fit() -> None:
    for length in range(95, 103):
        assert only(Entry(ImagePath("d" * length), EntryKind.DIRECTORY, 0o755)).name == "d" * length


def test_size_beyond_eight_gib_is_in_a_pax_record() -> None:
    entry = Entry(ImagePath("huge"), EntryKind.FILE, 0o644, RawSlice(Path("/nowhere"), 0, 8**11))
    written = header(entry)
    assert b"19 size=8589934592\n" in written
    info = tarfile.TarInfo.frombuf(written[-BLOCK:], "utf-8", "strict")
    assert info.size == 0


def test_headers_have_golden_bytes() -> None:
    assert header(file("opt/venv/bin/vllm", b"x" * 1000, 0o755)) == (
        b"opt/venv/bin/vllm".ljust(100, b"\0")
        + b"0000755\x000000000\x000000000\x0000000001750\x0002263773600\x00"
        + b"012504\0 0"
        + bytes(100)
        + b"ustar\x0000"
        + bytes(64)
        + b"0000000\x000000000\0"
        + bytes(155 + 12)
    )
    record = b"14 path=\xc3\xbc.py\n"
    written = header(file("ü.py"))
    assert written[:14] == b"././@PaxHeader"
    assert written[156:157] == b"x"
    assert written[BLOCK : BLOCK + len(record)] == record
    assert written[2 * BLOCK : 2 * BLOCK + 5] == "ü.py".encode()


@given(st.permutations(["a", "a.b", "a/b", "a-b", "a/b/c", "ab", "ä"]))
def test_entries_are_sorted_by_bytes_and_have_all_parents(paths: list[str]) -> None:
    folders = {"a", "a/b"}
    entries = complete(
        (file(path) for path in paths if path not in folders), owner="a test", folder_of=lambda _: (0o711, 5, 6)
    )
    assert [entry.path for entry in entries] == ["a", "a-b", "a.b", "a/b", "a/b/c", "ab", "ä"]
    assert [(e.mode, e.uid, e.gid) for e in entries if e.kind is EntryKind.DIRECTORY] == [(0o711, 5, 6)] * 2


def test_path_occurs_once_and_is_not_both_a_file_and_a_folder() -> None:
    with raises("duplicate-path", match="Two entries of one layer are /a/b") as caught:
        complete([file("a/b"), file("a/b")], owner="layer x")
    assert caught.value.where == "layer x"
    for entries in ([file("a"), file("a/b/c")], [file("a/b/c"), file("a")]):
        with raises("duplicate-path", match="/a is a file and a folder"):
            complete(entries, owner="layer x")
