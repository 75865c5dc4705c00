"""Writes /etc/ld.so.cache and the SONAME links as glibc's ldconfig would, without running it.

The format is glibc's `elf/cache.c` ("glibc-ld.so.cache1.1" with an extension that names the generator); the
order and the choice of files follow `elf/ldconfig.c` of glibc 2.36. Both were compared with the image's own
ldconfig: apart from the generator's name, the file is the same to the byte. Left out: glibc-hwcaps
subfolders, so that the baseline variant of a library is used; none of our packages has any.
"""

import fnmatch
import io
import posixpath
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

from imagefactory.assemble.layers.debian.file_tree import FileTree
from imagefactory.oci.entry import Entry, EntryKind

CACHE = "etc/ld.so.cache"
GENERATOR = b"spark-image-factory"

_MAGIC = b"glibc-ld.so.cache1.1"
_LITTLE_ENDIAN = 2  # `cache_file_new_flags_endian_little` in glibc's dl-cache.h
_EXTENSION_MAGIC = 0xEAA42174  # `cache_extension_magic`
_HEADER = struct.Struct("<20sIIB3xI12x")  # magic, entries, bytes of strings, flags, where the extension is
_ENTRY = struct.Struct("<iIIIQ")  # flags, where the SONAME and the path are, unused, hwcap
_EXTENSION = struct.Struct("<IIIIII")  # magic, sections; of the only one: tag (0, generator), flags, place, size


@dataclass(frozen=True)
class ElfMachine:
    """What ldconfig has to know about an architecture."""

    elf: str
    flags: int  # FLAG_ELF_LIBC6 (3) and the architecture's own bits, see glibc's `sysdeps/generic/ldconfig.h`
    triplet: str


MACHINES: Mapping[str, ElfMachine] = {
    "amd64": ElfMachine("EM_X86_64", 0x0303, "x86_64-linux-gnu"),
    "arm64": ElfMachine("EM_AARCH64", 0x0A03, "aarch64-linux-gnu"),
}


class CachedLibrary(NamedTuple):
    """One entry of the cache: the name to load, and its file."""

    soname: str
    path: str


def add_ld_cache(tree: FileTree, architecture: str) -> None:
    machine = MACHINES.get(architecture)
    if machine is None or "etc/ld.so.conf" not in tree:
        return
    children = tree.children()
    libraries: list[CachedLibrary] = []
    for shown, real in _folders(tree, machine).items():
        for soname, name in sorted(_libraries(tree, children.get(real, []), machine).items()):
            _link_soname(tree, real, soname, name)
            libraries.append(CachedLibrary(soname, f"{shown}/{soname}"))
    tree.add_file(CACHE, cache_bytes(libraries, machine))


def cache_bytes(libraries: list[CachedLibrary], machine: ElfMachine) -> bytes:
    # Python's sort is stable, also in reverse: among equal names the first folder stays first.
    ordered = sorted(libraries, key=lambda library: _sort_key(library.soname), reverse=True)
    offsets, strings = _string_table({text for library in ordered for text in library})
    strings_at = _HEADER.size + len(ordered) * _ENTRY.size
    # Rounded up to a multiple of four, as glibc aligns it.
    extension_at = -(-(strings_at + len(strings)) // 4) * 4
    parts = [_HEADER.pack(_MAGIC, len(ordered), len(strings), _LITTLE_ENDIAN, extension_at)]
    parts += [
        _ENTRY.pack(machine.flags, strings_at + offsets[soname], strings_at + offsets[path], 0, 0)
        for soname, path in ordered
    ]
    parts += [strings, bytes(extension_at - strings_at - len(strings))]
    generator_at = extension_at + _EXTENSION.size
    parts += [_EXTENSION.pack(_EXTENSION_MAGIC, 1, 0, 0, generator_at, len(GENERATOR)), GENERATOR]
    return b"".join(parts)


def _string_table(texts: set[str]) -> tuple[dict[str, int], bytes]:
    """Return the offset of each zero-terminated string, and the table; the end of another is not stored twice."""
    offsets: dict[str, int] = {}
    data = before = b""
    # Sorted by their reversed text, a string comes right before those that are its end.
    for string in sorted((text.encode() for text in texts), key=lambda text: text[::-1], reverse=True):
        if before.endswith(string):
            offsets[string.decode()] = len(data) - 1 - len(string)
        else:
            offsets[string.decode()] = len(data)
            data += string + b"\0"
            before = string
    return offsets, data


def _sort_key(name: str) -> list[tuple[int, int]]:
    """Return a key that sorts as glibc's `_dl_cache_libcmp` does: numbers by value, after all other characters."""
    return [(1, int(run)) if run.isdigit() else (0, ord(run)) for run in re.findall(r"[0-9]+|[^0-9]", name)]


def _folders(tree: FileTree, machine: ElfMachine) -> dict[str, str]:
    """Return the library folders in ldconfig's order, as configured and as real paths, each once."""
    builtin = (f"/lib/{machine.triplet}", f"/usr/lib/{machine.triplet}", "/lib", "/usr/lib")
    folders: dict[str, str] = {}
    for folder in (*_configured(tree, "etc/ld.so.conf"), *builtin):
        real = tree.resolve(folder)
        if real is not None and real not in folders.values():
            folders[folder] = real
    return folders


def _configured(tree: FileTree, conf: str) -> Iterator[str]:
    for line in tree.read(conf).decode().splitlines():
        setting = line.partition("#")[0].strip()
        if setting.startswith("include "):
            pattern = setting.removeprefix("include ").strip().lstrip("/")
            for file in fnmatch.filter([entry.path for entry in tree], pattern):
                yield from _configured(tree, file)
        elif setting:
            yield setting.rstrip("/")


def _libraries(tree: FileTree, entries: list[Entry], machine: ElfMachine) -> dict[str, str]:
    """Return the best file for each SONAME in a folder (`search_dir` in ldconfig.c)."""
    best: dict[str, tuple[bool, str]] = {}
    for entry in entries:
        name = posixpath.basename(entry.path)
        if not re.match(r"(lib|ld-).*\.so|ld(64)?\.so\.", name) or name.endswith("-gdb.py"):
            continue
        soname = _soname(tree, entry, machine)
        if soname is None:
            continue
        soname = soname or name
        # A link counts as a link if it is the SONAME, or the .so that compilers link with.
        link = entry.kind is EntryKind.SYMLINK and (
            name == soname or (name.endswith(".so") and soname.startswith(name))
        )
        if link:
            soname = name
        chosen = best.get(soname)
        # Files go before links, then higher versions before lower ones.
        if chosen is None or (not link, _sort_key(name)) > (not chosen[0], _sort_key(chosen[1])):
            best[soname] = (link, name)
    return {soname: name for soname, (_, name) in best.items()}


def _soname(tree: FileTree, entry: Entry, machine: ElfMachine) -> str | None:
    """Return a library's SONAME, empty if it has none, or None if this is no library of the architecture."""
    real = tree.resolve(entry.path)
    target = tree.get(real) if real is not None else None
    if target is None or target.kind is not EntryKind.FILE:
        return None
    try:
        elf = ELFFile(io.BytesIO(tree.read(target.path)))
        if elf["e_machine"] != machine.elf:
            return None
        for segment in elf.iter_segments("PT_DYNAMIC"):
            if isinstance(segment, DynamicSegment):
                return next((str(vars(tag)["soname"]) for tag in segment.iter_tags("DT_SONAME")), "")
    except ELFError:
        return None  # a linker script, such as libc.so
    return None


def _link_soname(tree: FileTree, folder: str, soname: str, name: str) -> None:
    """Link a library's SONAME to its file, unless a suitable entry is there already."""
    path = f"{folder}/{soname}"
    present = tree.get(path)
    if present is None:
        tree.add_link(path, name)
    elif present.kind is EntryKind.SYMLINK and tree.resolve(path) != tree.resolve(f"{folder}/{name}"):
        tree.replace_link(path, name)
