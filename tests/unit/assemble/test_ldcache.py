"""The cache of the dynamic linker, for libraries that the tests generate."""

import random
import struct

import pytest

from imagefactory.assemble.layers.debian.file_tree import FileTree
from imagefactory.assemble.layers.debian.ldcache import (
    MACHINES,
    CachedLibrary,
    _sort_key,
    add_ld_cache,
    cache_bytes,
)
from imagefactory.oci.entry import EntryKind

TRIPLET = "aarch64-linux-gnu"
MACHINE = {"amd64": 62, "arm64": 183}


def shared_object(soname: str | None, architecture: str = "arm64") -> bytes:
    """Return the smallest ELF file that has a dynamic segment, and optionally a SONAME."""
    strings = b"\0" + (soname or "").encode() + b"\0"
    head, dynamic_at = 64 + 2 * 56, 64 + 2 * 56
    strings_at = dynamic_at + 4 * 16
    tags = [(5, strings_at), (10, len(strings)), (14, 1) if soname else (30, 0), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in tags)
    size = strings_at + len(strings)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(3, MACHINE[architecture], 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0),
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    segment = struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8)
    assert len(header + load + segment) == head
    return header + load + segment + dynamic + strings


def read_cache(data: bytes) -> list[tuple[int, str, str]]:
    """Read a cache as ld.so does."""
    magic, count, length, flags, extension = struct.unpack_from("<20sIIB3xI", data)
    assert (magic, flags) == (b"glibc-ld.so.cache1.1", 2)
    assert len(data) > 48 + 24 * count + length
    assert struct.unpack_from("<II", data, extension) == (0xEAA42174, 1)

    def string(offset: int) -> str:
        return data[offset : data.index(b"\0", offset)].decode()

    entries = (struct.unpack_from("<iIIIQ", data, 48 + 24 * place) for place in range(count))
    return [(kind, string(key), string(value)) for kind, key, value, _, _ in entries]


@pytest.fixture
def tree() -> FileTree:
    made = FileTree()
    made.add_file("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    made.add_file("etc/ld.so.conf.d/libc.conf", "# libc default configuration\n/usr/local/lib\n")
    made.add_file(f"etc/ld.so.conf.d/{TRIPLET}.conf", f"/lib/{TRIPLET}\n/usr/lib/{TRIPLET}\n")
    made.add_link("lib", "usr/lib")
    for folder in ("usr/lib", f"usr/lib/{TRIPLET}", "usr/local/lib"):
        made.add_folder(folder)
    return made


def cached(tree: FileTree, architecture: str = "arm64") -> list[tuple[int, str, str]]:
    add_ld_cache(tree, architecture)
    return read_cache(tree.read("etc/ld.so.cache"))


def link_target(tree: FileTree, path: str) -> str:
    link = tree.get(path)
    assert link is not None
    assert link.kind is EntryKind.SYMLINK
    return link.target


def test_libraries_are_cached_under_the_first_name_of_their_folder(tree: FileTree) -> None:
    tree.add_file(f"usr/lib/{TRIPLET}/libz.so.1.2.13", shared_object("libz.so.1"))
    tree.add_link(f"usr/lib/{TRIPLET}/libz.so.1", "libz.so.1.2.13")
    tree.add_link(f"usr/lib/{TRIPLET}/libz.so", f"/lib/{TRIPLET}/libz.so.1.2.13")
    assert cached(tree) == [
        (0x0A03, "libz.so.1", f"/lib/{TRIPLET}/libz.so.1"),
        (0x0A03, "libz.so", f"/lib/{TRIPLET}/libz.so"),
    ]


def test_flags_depend_on_the_architecture(tree: FileTree) -> None:
    tree.add_file("usr/lib/liba.so.1", shared_object("liba.so.1", "amd64"))
    tree.add_file("usr/lib/libb.so.1", shared_object("libb.so.1", "arm64"))
    assert cached(tree, "amd64") == [(0x0303, "liba.so.1", "/lib/liba.so.1")]


def test_soname_link_is_added_where_it_is_missing_and_points_to_the_newest_file(tree: FileTree) -> None:
    tree.add_file("usr/local/lib/libfoo.so.1.2", shared_object("libfoo.so.1"))
    for version in ("1.9", "1.10"):
        tree.add_file(f"usr/lib/libbar.so.{version}", shared_object("libbar.so.1"))
    tree.add_link("usr/lib/libbar.so.1", "libbar.so.1.9")
    assert (0x0A03, "libfoo.so.1", "/usr/local/lib/libfoo.so.1") in cached(tree)
    assert link_target(tree, "usr/local/lib/libfoo.so.1") == "libfoo.so.1.2"
    assert link_target(tree, "usr/lib/libbar.so.1") == "libbar.so.1.10"


def test_library_without_soname_is_cached_by_file_name_and_other_files_are_not(tree: FileTree) -> None:
    tree.add_file("usr/lib/libplain.so", shared_object(None))
    tree.add_file("usr/lib/libc.so", "/* GNU ld script */ GROUP ( /lib/libc.so.6 )")
    tree.add_file("usr/lib/libstdc++.so.6-gdb.py", "import gdb")
    tree.add_file("usr/lib/plugin.so", shared_object("plugin.so"))
    tree.add_link("usr/lib/libdangling.so.1", "gone")
    tree.add_folder("usr/lib/libdir.so.1")
    assert cached(tree) == [(0x0A03, "libplain.so", "/lib/libplain.so")]


def test_first_configured_folder_wins_a_shared_name(tree: FileTree) -> None:
    tree.add_file("usr/local/lib/libfoo.so.1", shared_object("libfoo.so.1"))
    tree.add_file(f"usr/lib/{TRIPLET}/libfoo.so.1", shared_object("libfoo.so.1"))
    # The files of ld.so.conf.d are read by name: aarch64-linux-gnu.conf before libc.conf.
    assert [path for _, _, path in cached(tree)] == [
        f"/lib/{TRIPLET}/libfoo.so.1",
        "/usr/local/lib/libfoo.so.1",
    ]


def test_image_without_linker_configuration_has_no_cache() -> None:
    tree = FileTree()
    add_ld_cache(tree, "arm64")
    assert "etc/ld.so.cache" not in tree


def test_name_at_the_end_of_a_path_is_not_stored_twice() -> None:
    data = cache_bytes([CachedLibrary("libfoo.so.1", "/lib/libfoo.so.1")], MACHINES["arm64"])
    assert data.count(b"libfoo.so.1") == 1


def test_names_are_sorted_as_in_glibc() -> None:
    """glibc's `_dl_cache_libcmp` puts numbers after everything else, and compares them by value."""
    names = [
        *("", "libA.so", "liba", "liba-1.so", "liba.so", "liba.so.1", "liba.so.1.9", "liba.so.1.10"),
        *("liba.so.1a", "liba.so.01b", "liba.so.2", "liba.so.10", "liba_1.so", "libab.so", "liba1.so"),
        *("lib9.so", "lib10.so"),
    ]
    shuffled = random.Random(1).sample(names, len(names))
    assert sorted(shuffled, key=_sort_key) == names
