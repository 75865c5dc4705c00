"""Reads a .deb, an ar archive of a control tar and a data tar, and unpacks it into entries of a layer.

The data tar is decompressed once, to a spool file that later readers take slices of, so that memory use stays small.
Nothing is executed. Set-uid and set-gid bits are kept as packaged (su, passwd, newgrp and friends): containers that run
with `no-new-privileges` ignore them, and without them `su` and `passwd` would not work in any other.
"""

from __future__ import annotations

import gzip
import lzma
import posixpath
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import zstandard
from debian.arfile import ArError, ArFile
from debian.deb822 import Deb822

from imagefactory.assemble.layers.debian.policy import (
    GROUPS,
    MERGED,
    PLAIN_SINCE_TRIXIE,
    UIDS,
    Folder,
    folder,
    is_left_out,
    merged,
)
from imagefactory.errors import InputError
from imagefactory.oci.entry import Entry, EntryKind, ImagePath, RawSlice
from imagefactory.project.locks.files import LockedDeb
from imagefactory.store.atomic import translating_disk_full

# ArMember reads like a file but does not declare that it is one.
_OPENERS: Mapping[str, Callable[[Any], AbstractContextManager[Any]]] = {
    ".tar.xz": lzma.open,
    ".tar.zst": zstandard.ZstdDecompressor().stream_reader,
    ".tar.gz": gzip.open,
    ".tar": closing,
}

_DAMAGED = (
    *(tarfile.TarError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError),
    *(EOFError, UnicodeDecodeError),
)


class NamedDeb(NamedTuple):
    """A package as its file name describes it."""

    name: str
    version: str
    architecture: str  # `all` if it runs on every one
    file: str
    sha256: str

    @classmethod
    def of_file(cls, file: str, sha256: str) -> NamedDeb:
        name, version, architecture = file.removesuffix(".deb").split("_")
        # In file names, apt spells the colon of an epoch %3a.
        return cls(name, version.replace("%3a", ":"), architecture, file, sha256)


DebPackage = NamedDeb | LockedDeb  # what the base must know about a package before opening it


@dataclass(frozen=True)
class Deb:
    """A package ready to be unpacked: its control files in memory, its data tar in a spool file."""

    locked: DebPackage
    control: Mapping[str, bytes]
    data: Path

    @property
    def name(self) -> str:
        return self.locked.name

    def script(self, name: str) -> str:
        return self.control.get(name, b"").decode("utf-8", errors="replace")

    def field(self, name: str) -> str:
        return str(Deb822(self.script("control")).get(name, ""))


def open_deb(locked: DebPackage, file: Path, scratch: Path) -> Deb:
    """Read a package's control files, and decompress its data tar into the scratch folder."""
    spool = scratch / f"{locked.sha256}.tar"
    with reading(locked), file.open("rb") as archive:
        with (
            _opened(archive, "control") as control,
            tarfile.open(fileobj=control, mode="r|", encoding="utf-8") as tar,
        ):
            files = {
                member.name.removeprefix("./"): content.read()
                for member in tar
                if member.isreg() and (content := tar.extractfile(member)) is not None
            }
        with translating_disk_full(spool), _opened(archive, "data") as data, spool.open("wb") as out:
            shutil.copyfileobj(data, out, 1 << 20)
    return Deb(locked=locked, control=files, data=spool)


@contextmanager
def data_files(file: Path) -> Iterator[Iterator[tuple[str, str, Callable[[], bytes] | None]]]:
    """Iterate over what a package would unpack: the path, a link's target, and a reader for regular files."""
    with (
        file.open("rb") as archive,
        _opened(archive, "data") as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        yield (
            (member.name.removeprefix("./").rstrip("/"), member.linkname, content.read if content else None)
            for member in tar
            for content in [tar.extractfile(member) if member.isreg() else None]
        )


@contextmanager
def reading(locked: DebPackage) -> Iterator[None]:
    """Translate what decompressors and tarfile raise on damaged input into an error that names the package."""
    try:
        yield
    except _DAMAGED as error:
        raise InputError(
            "bad-deb",
            f"The package {locked.name} {locked.version} cannot be unpacked.",
            where=locked.file,
            why=str(error) or type(error).__name__,
            fix="Run `./inv clean` and build again; if the same file fails again, make a new lock.",
        ) from error


@contextmanager
def _opened(archive: BinaryIO, stem: str) -> Iterator[IO[bytes]]:
    archive.seek(0)
    try:
        members = {member.name: member for member in ArFile(fileobj=archive).getmembers()}
    except (ArError, OSError, ValueError) as error:
        if getattr(error, "errno", None):  # the disk's failure, not the archive's
            raise
        raise tarfile.ReadError(f"it is not a sound ar archive: {error}") from None
    for suffix, opener in _OPENERS.items():
        if f"{stem}{suffix}" in members:
            with opener(members[f"{stem}{suffix}"]) as stream:
                yield stream
            return
    raise tarfile.ReadError(f"it has no {stem}.tar that we can read, only {', '.join(members)}")


LINKED_FOLDERS = {"var/lock": "/run/lock", "var/run": "/run"}  # the postinst of base-files makes them links

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
    member: tarfile.TarInfo, path: ImagePath, deb: Deb, shipped: dict[ImagePath, Entry], architecture: str
) -> Entry:
    extended = sorted(key for key in member.pax_headers if key.startswith("SCHILY."))
    if extended:
        raise _undeclared(
            f"{deb.name} ships {member.name} with extended attributes.",
            deb,
            f"Layers do not carry {', '.join(extended)}; Debian sets such things in scripts.",
            "Report it: the layer format has to learn this first.",
        )
    uid, gid = _owner(member, deb)
    if member.issym():
        return Entry(path, EntryKind.SYMLINK, 0o777, target=member.linkname)
    if member.isdir():
        expected = folder(path)
        packaged = Folder(member.mode & 0o7777, uid, gid)
        if packaged != expected and not (packaged == Folder() and path in PLAIN_SINCE_TRIXIE):
            raise _undeclared(
                f"{deb.name} wants /{path} to be a directory with mode {member.mode:o}, owner {uid}:{gid}.",
                deb,
                f"The table of folders says {expected.mode:o}, owner {expected.uid}:{expected.gid}.",
                "Declare it in FOLDERS in imagefactory/assemble/layers/debian/policy.py.",
            )
        return Entry(path, EntryKind.DIRECTORY, expected.mode, uid=expected.uid, gid=expected.gid)
    if member.islnk():
        target = merged(_safe_path(member.linkname, deb), architecture)
        if target not in shipped or shipped[target].kind is not EntryKind.FILE:
            raise _unsafe(deb, path, f"it is a hard link to /{target}, which is no file of the package before it")
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


def _unsafe(deb: Deb, path: str, why: str) -> InputError:
    return InputError(
        "unsafe-path",
        f"{deb.name} ships {path!r}, which may not go into an image.",
        where=deb.locked.file,
        why=f"{path}: {why}.",
        fix=f"Do without {deb.name}: remove it, or what needs it, from the base's list in matrix.yaml.",
    )


def _undeclared(what: str, deb: Deb, why: str, fix: str) -> InputError:
    return InputError("undeclared-metadata", what, where=deb.locked.file, why=why, fix=fix)


def _owner(member: tarfile.TarInfo, deb: Deb) -> tuple[int, int]:
    """Return the owner as dpkg determines it: by name, or by number if there is no name."""
    ids = []
    for kind, name, number, accounts in (
        ("user", member.uname, member.uid, UIDS),
        ("group", member.gname, member.gid, GROUPS),
    ):
        if name and name not in accounts:
            raise _undeclared(
                f"{deb.name} ships {member.name} for the {kind} {name}, which the base does not have.",
                deb,
                "Maintainer scripts do not run, so nothing creates that account.",
                "Declare it in imagefactory/assemble/layers/debian/policy.py.",
            )
        ids.append(accounts[name] if name else number)
    return ids[0], ids[1]


def _is_itself(entry: Entry, architecture: str) -> bool:
    target = posixpath.normpath(posixpath.join("/", posixpath.dirname(entry.path), entry.target))
    return merged(target.lstrip("/"), architecture) == entry.path
