"""Tar headers, byte for byte: USTAR where it suffices, PAX otherwise.

The standard library's writer has changed its bytes between Python versions, but a digest must not change. The format is
POSIX.1-2001 pax (https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html), reduced to what a layer needs.
"""

from collections.abc import Callable, Iterable

from imagefactory.errors import InputError
from imagefactory.oci.entry import Entry, EntryKind, ImagePath
from imagefactory.oci.format import MTIME

BLOCK = 512
END = bytes(2 * BLOCK)  # two empty blocks end an archive

_TYPES = {EntryKind.FILE: b"0", EntryKind.HARDLINK: b"1", EntryKind.SYMLINK: b"2", EntryKind.DIRECTORY: b"5"}
_NAME, _PREFIX, _LINK = 100, 155, 100  # bytes of the fields in a USTAR header
_OCTAL_SIZE_LIMIT = 8**11  # the field has eleven octal digits and a NUL
_SETTLE = "Say in matrix.yaml which wheel has the path (`conflicts`); of two Debian packages, leave one out."


def header(entry: Entry) -> bytes:
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
    # A symlink's mode means nothing, but is part of the bytes, so it is always the same (nix2container #23).
    mode = 0o777 if entry.kind is EntryKind.SYMLINK else entry.mode
    block = _block(
        split[1],
        _TYPES[entry.kind],
        size if size < _OCTAL_SIZE_LIMIT else 0,
        mode,
        prefix=split[0],
        uid=entry.uid,
        gid=entry.gid,
        target=target[:_LINK],
    )
    if not records:
        return block
    body = b"".join(_record(key, value) for key, value in records)
    # Readers ignore the name of this entry; it is the one that Python's tarfile gives.
    return _block(b"././@PaxHeader", b"x", len(body)) + body + padding(len(body)) + block


def padding(size: int) -> bytes:
    """Return the bytes that fill the last block of an entry's content."""
    return bytes(-size % BLOCK)


def complete(
    entries: Iterable[Entry], *, owner: str, folder_of: Callable[[str], tuple[int, int, int]] = lambda _: (0o755, 0, 0)
) -> list[Entry]:
    """Sort entries and add all parent folders; raise an error if a path occurs twice.

    Entries are sorted by the bytes of their paths, so a folder precedes its content. The image specification does not
    define implied parent folders, and some engines refuse them (moby #53257), so all are written. A folder in an upper
    layer replaces the attributes of the same folder below, so `folder_of` (mode, uid, gid) must be the same for all.
    """
    by_path: dict[ImagePath, Entry] = {}
    for entry in entries:
        if entry.path in by_path:
            raise InputError(
                "duplicate-path",
                f"Two entries of one layer are /{entry.path}.",
                where=owner,
                why="A path may occur only once in a layer; which of the two an engine keeps is undefined.",
                fix=_SETTLE,
            )
        by_path[entry.path] = entry
    for path in list(by_path):
        parent = ImagePath(path.rpartition("/")[0])
        while parent and parent not in by_path:
            mode, uid, gid = folder_of(parent)
            by_path[parent] = Entry(parent, EntryKind.DIRECTORY, mode, uid=uid, gid=gid)
            parent = ImagePath(parent.rpartition("/")[0])
        if parent and by_path[parent].kind is not EntryKind.DIRECTORY:
            raise InputError(
                "duplicate-path",
                f"/{parent} is a {by_path[parent].kind.value} and a folder in one layer.",
                where=owner,
                why=f"It also contains /{path}.",
                fix=_SETTLE,
            )
    return sorted(by_path.values(), key=lambda entry: entry.path.encode())


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a long path into USTAR's prefix and name at the last possible slash."""
    if len(name) <= _NAME:
        return b"", name
    cut = name.rfind(b"/", 0, _PREFIX + 1)
    while cut > 0:
        if len(name) - cut - 1 > _NAME:
            return None
        if name[cut + 1 :]:  # not at the slash that ends a folder: a name may not be empty
            return name[:cut], name[cut + 1 :]
        cut = name.rfind(b"/", 0, cut)
    return None


def _block(
    name: bytes,
    kind: bytes,
    size: int,
    mode: int = 0o644,
    *,
    prefix: bytes = b"",
    uid: int = 0,
    gid: int = 0,
    target: bytes = b"",
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
        b"ustar\x0000",  # the magic, and version 00
        bytes(64),  # owner names: engines use the numbers
        b"0000000\x000000000\0",  # no devices
        prefix.ljust(_PREFIX, b"\0"),
        bytes(12),  # fills the block
    )
    block = b"".join(fields)
    # The checksum is at 148, as six octal digits, a NUL and a space.
    return b"%b%06o\0 %b" % (block[:148], sum(block), block[156:])


def _record(key: str, value: str) -> bytes:
    """Return `length key=value`, where the length includes its own digits."""
    rest = f" {key}={value}\n".encode()
    length = len(rest)  # too short at first: its digits may make it longer twice
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest
