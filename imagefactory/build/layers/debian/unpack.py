"""Unpacks a package's data tar into entries of a layer, without executing anything.

Set-uid and set-gid bits are kept as packaged (su, passwd, newgrp and friends): containers that run with
`no-new-privileges` ignore them, and without them `su` and `passwd` would not work in any other.
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from imagefactory.build.layers.debian.accounts import GROUPS, UIDS
from imagefactory.build.layers.debian.deb import Deb, reading
from imagefactory.build.layers.debian.policy import (
    MERGED,
    PLAIN_SINCE_TRIXIE,
    Folder,
    folder,
    is_left_out,
    merged,
)
from imagefactory.errors.layers import UndeclaredMetadataError, UnsafePathError
from imagefactory.oci.entry import Entry, EntryKind, ImagePath, RawSlice

LINKED_FOLDERS = {"var/lock": "/run/lock", "var/run": "/run"}
"""Folders that base-files ships and its postinst turns into links."""

_WHITEOUT = ".wh."


@dataclass(frozen=True)
class Unpacked:
    """The content of a package: entries for the image, entries left out, and all paths as dpkg lists them."""

    entries: tuple[Entry, ...]
    left_out: Mapping[ImagePath, Entry]
    listed: tuple[str, ...]


def unpack(deb: Deb, architecture: str) -> Unpacked:
    """Turn a package's data tar into entries, with usr-merge applied and documentation left out."""
    entries: dict[ImagePath, Entry] = {}
    shipped: dict[ImagePath, Entry] = {}  # including what is left out: hard links may point to it
    listed: list[str] = []
    with reading(deb.locked), tarfile.open(deb.data, "r:", encoding="utf-8", errors="strict") as tar:
        for member in tar:
            packaged = _safe_path(member.name, deb)
            listed.append(f"/{packaged or '.'}")
            path = merged(packaged, architecture)
            if not path or (member.isdir() and path in LINKED_FOLDERS):
                continue
            if member.issym() and packaged in MERGED[architecture]:
                continue  # since trixie base-files ships the links of the merge, which every base gets anyway
            entry = _entry(member, path, deb, shipped, architecture)
            shipped[path] = entry
            if entry.kind is EntryKind.SYMLINK and _is_itself(entry, architecture):
                continue  # /usr/bin/x -> /bin/x: after the merge, it is its own target
            if not is_left_out(path, entry.kind):
                entries[path] = entry
    left_out = {path: entry for path, entry in shipped.items() if path not in entries}
    return Unpacked(tuple(entries.values()), left_out, tuple(listed))


def join_hard_links(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Turn files with the same content into hard links to the first of them by path.

    Content is the same if it is the same slice of the same spool file. The first path has the content because
    a layer is written in the order of paths, and a hard link can only point back.
    """
    first: dict[RawSlice, ImagePath] = {}
    for entry in entries:
        if entry.kind is not EntryKind.FILE or not isinstance(entry.content, RawSlice):
            yield entry
        elif entry.content in first:
            yield replace(entry, kind=EntryKind.HARDLINK, content=None, target=first[entry.content])
        else:
            first[entry.content] = entry.path
            yield entry


def _entry(
    member: tarfile.TarInfo,
    path: ImagePath,
    deb: Deb,
    shipped: dict[ImagePath, Entry],
    architecture: str,
) -> Entry:
    _refuse_extended_attributes(member, deb)
    uid, gid = _owner(member, deb)
    if member.issym():
        return Entry(path, EntryKind.SYMLINK, 0o777, target=member.linkname)
    if member.isdir():
        expected = folder(path)
        found = Folder(member.mode & 0o7777, uid, gid)
        if found != expected and not (found == Folder() and path in PLAIN_SINCE_TRIXIE):
            raise UndeclaredMetadataError(
                f"{deb.name} wants /{path} to be a directory with mode {member.mode:o}, owner {uid}:{gid}.",
                where=deb.locked.file,
                why=f"The table of folders says {expected.mode:o}, owner {expected.uid}:{expected.gid}.",
                fix="Declare it in FOLDERS in imagefactory/build/layers/debian/policy.py.",
            )
        return Entry(path, EntryKind.DIRECTORY, expected.mode, uid=expected.uid, gid=expected.gid)
    if member.islnk():
        target = merged(_safe_path(member.linkname, deb), architecture)
        if target not in shipped or shipped[target].kind is not EntryKind.FILE:
            raise _unsafe(
                deb, path, f"it is a hard link to /{target}, which is no file of the package before it"
            )
        return replace(shipped[target], path=path)
    if member.isreg() and not member.issparse():
        content = RawSlice(deb.data, member.offset_data, member.size)
        return Entry(path, EntryKind.FILE, member.mode & 0o7777, content, uid=uid, gid=gid)
    raise _unsafe(deb, path, "it is a device, a pipe or a sparse file")


def _safe_path(name: str, deb: Deb) -> str:
    """Strip the leading `./`, and refuse every name that could lead somewhere else."""
    path = "" if name in {".", "./"} else name.removeprefix("./").rstrip("/")
    if not path:
        return path
    parts = path.split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise _unsafe(deb, name, "it is absolute, or has `.` or `..` in it")
    if any(part.startswith(_WHITEOUT) for part in parts):
        raise _unsafe(deb, name, "in a layer, its name would delete another file")
    if not path.isprintable():
        raise _unsafe(deb, name, "it has control characters in it")
    return path


def _unsafe(deb: Deb, path: str, why: str) -> UnsafePathError:
    return UnsafePathError(
        f"{deb.name} ships {path!r}, which may not go into an image.",
        where=deb.locked.file,
        why=f"{path}: {why}.",
        fix=f"Do without {deb.name}: remove it, or what needs it, from the base's list in matrix.yaml.",
    )


def _owner(member: tarfile.TarInfo, deb: Deb) -> tuple[int, int]:
    """Return the owner as dpkg determines it: by name, or by number if there is no name."""
    ids = []
    for kind, name, number, known in (
        ("user", member.uname, member.uid, UIDS),
        ("group", member.gname, member.gid, GROUPS),
    ):
        if name and name not in known:
            raise UndeclaredMetadataError(
                f"{deb.name} ships {member.name} for the {kind} {name}, which the base does not have.",
                where=deb.locked.file,
                why="Maintainer scripts do not run, so nothing creates that account.",
                fix="Declare it in imagefactory/build/layers/debian/accounts.py.",
            )
        ids.append(known[name] if name else number)
    return ids[0], ids[1]


def _refuse_extended_attributes(member: tarfile.TarInfo, deb: Deb) -> None:
    found = sorted(key for key in member.pax_headers if key.startswith("SCHILY."))
    if found:
        raise UndeclaredMetadataError(
            f"{deb.name} ships {member.name} with extended attributes.",
            where=deb.locked.file,
            why=f"Layers do not carry {', '.join(found)}; Debian sets such things in scripts.",
            fix="Report it: the layer format has to learn this first.",
        )


def _is_itself(entry: Entry, architecture: str) -> bool:
    target = posixpath.normpath(posixpath.join("/", posixpath.dirname(entry.path), entry.target))
    return merged(target.lstrip("/"), architecture) == entry.path
