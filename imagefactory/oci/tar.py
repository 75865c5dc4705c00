"""Tar headers, byte for byte: USTAR where it fits, PAX where it does not.

The standard library's writer changed its bytes between Python versions; a digest must not. The format is POSIX.1-2001
pax (https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html), reduced to what a layer needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from imagefactory.errors.layers import DuplicatePathError
from imagefactory.oci.entry import Entry, EntryKind, ImagePath
from imagefactory.oci.format import MTIME

BLOCK = 512
END = bytes(2 * BLOCK)
"""Two empty blocks end an archive."""

_TYPES = {EntryKind.FILE: b"0", EntryKind.HARDLINK: b"1", EntryKind.SYMLINK: b"2", EntryKind.DIRECTORY: b"5"}
_NAME, _PREFIX, _LINK = 100, 155, 100
_OCTAL_SIZE_LIMIT = 8**11


def header(entry: Entry) -> bytes:
    """Write what stands before an entry's content."""
    path = entry.path + "/" if entry.kind is EntryKind.DIRECTORY else entry.path
    name = path.encode()
    size = entry.content.size if entry.content is not None else 0
    target = entry.target.encode()
    records: list[tuple[str, str]] = []
    split = _split(name) if path.isascii() else None
    if split is None:
        records.append(("path", path))
        split = (b"", name[:_NAME])
    if len(target) > _LINK or not entry.target.isascii():
        records.append(("linkpath", entry.target))
    if size >= _OCTAL_SIZE_LIMIT:
        records.append(("size", str(size)))
    # A symlink's own mode means nothing, but it is part of the bytes: always the same (nix2container #23).
    mode = 0o777 if entry.kind is EntryKind.SYMLINK else entry.mode
    block = _block(
        prefix=split[0],
        name=split[1],
        mode=mode,
        uid=entry.uid,
        gid=entry.gid,
        size=size if size < _OCTAL_SIZE_LIMIT else 0,
        kind=_TYPES[entry.kind],
        target=target[:_LINK],
    )
    return _pax(records) + block if records else block


def padding(size: int) -> bytes:
    """Fill the last block of an entry's content."""
    return bytes(-size % BLOCK)


def complete(
    entries: Iterable[Entry],
    *,
    owner: str,
    folder_of: Callable[[str], tuple[int, int, int]] = lambda _: (0o755, 0, 0),
) -> list[Entry]:
    """Put entries into the one order of the format, with every parent folder; a path may occur once only.

    The order is that of the paths' bytes, so a folder stands before what is in it. Implied parent folders are
    undefined in the image specification and refused by some engines (moby #53257), so all are written. A folder of
    an upper layer replaces the attributes of the same folder below, so `folder_of` (mode, uid, gid) is one table.
    """
    by_path: dict[ImagePath, Entry] = {}
    for entry in entries:
        if entry.path in by_path:
            raise DuplicatePathError(
                f"Two things want to be /{entry.path} in one layer.",
                where=owner,
                why="A layer may hold a path once; which of the two an engine keeps is undefined.",
                fix="If two wheels own the path, settle it in matrix.yaml under `conflicts`.",
            )
        by_path[entry.path] = entry
    for path in list(by_path):
        parent = ImagePath(path.rpartition("/")[0])
        while parent and parent not in by_path:
            mode, uid, gid = folder_of(parent)
            by_path[parent] = Entry(parent, EntryKind.DIRECTORY, mode, uid=uid, gid=gid)
            parent = ImagePath(parent.rpartition("/")[0])
        if parent and by_path[parent].kind is not EntryKind.DIRECTORY:
            raise DuplicatePathError(
                f"/{parent} is a {by_path[parent].kind.value} and a folder in one layer.",
                where=owner,
                why=f"It also holds /{path}.",
                fix="If two wheels own the path, settle it in matrix.yaml under `conflicts`.",
            )
    return sorted(by_path.values(), key=lambda entry: entry.path.encode())


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Divide a long path into USTAR's prefix and name, at the last slash that works."""
    if len(name) <= _NAME:
        return b"", name
    cut = name.rfind(b"/", 0, _PREFIX + 1)
    while cut > 0:
        if len(name) - cut - 1 > _NAME:
            return None
        if name[cut + 1 :]:
            return name[:cut], name[cut + 1 :]
        cut = name.rfind(b"/", 0, cut)
    return None


def _block(
    *,
    prefix: bytes,
    name: bytes,
    mode: int,
    uid: int,
    gid: int,
    size: int,
    kind: bytes,
    target: bytes,
) -> bytes:
    fields = (
        name.ljust(_NAME, b"\0"),
        b"%07o\0" % mode,
        b"%07o\0" % uid,
        b"%07o\0" % gid,
        b"%011o\0" % size,
        b"%011o\0" % MTIME,
        b"        ",  # the checksum counts itself as spaces
        kind,
        target.ljust(_LINK, b"\0"),
        b"ustar\x0000",
        bytes(64),  # owner names: engines go by number
        b"0000000\x000000000\0",  # no devices
        prefix.ljust(_PREFIX, b"\0"),
        bytes(12),
    )
    block = b"".join(fields)
    return b"%b%06o\0 %b" % (block[:148], sum(block), block[156:])


def _pax(records: list[tuple[str, str]]) -> bytes:
    body = b"".join(_record(key, value) for key, value in records)
    block = _block(
        prefix=b"",
        name=b"././@PaxHeader",
        mode=0o644,
        uid=0,
        gid=0,
        size=len(body),
        kind=b"x",
        target=b"",
    )
    return block + body + padding(len(body))


def _record(key: str, value: str) -> bytes:
    """Write `length key=value`, where the length counts its own digits."""
    rest = f" {key}={value}\n".encode()
    length = len(rest)
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest
