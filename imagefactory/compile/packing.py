"""Packs wheels anew, the same on every machine: under another version or platform, with some files replaced.

Unchanged files keep their compressed bytes; others are compressed with the same library as layers.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import deflate

from imagefactory.store.atomic import writing

_LEVEL: Final = 6
_DATE: Final = (1 << 5) | 2
"""The second of January 1980, in the format of zip; the first is before it in some time zones."""
_UTF8: Final = 0x800
_VERSION: Final = 20
_UNIX: Final = 3 << 8
_LOCAL: Final = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL: Final = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END: Final = struct.Struct("<4sHHHHIIH")
_PIECE: Final = 1 << 20


@dataclass(frozen=True)
class _Member:
    name: str
    crc: int
    packed: int
    size: int
    method: int
    executable: bool
    offset: int


class _Archive:
    """Writes a zip file without anything that differs between machines."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.members: list[_Member] = []
        self.record: list[tuple[str, str, str]] = []

    def copy(self, source: ZipFile, info: ZipInfo, name: str) -> None:
        """Copy a member of another archive with its compressed bytes."""
        digest = hashlib.sha256()
        with source.open(info) as content:  # also checks the CRC
            while piece := content.read(_PIECE):
                digest.update(piece)
        self._begin(
            name, info.CRC, info.compress_size, info.file_size, info.compress_type,
            executable=bool((info.external_attr >> 16) & 0o111),
        )  # fmt: skip
        for piece in _compressed(source, info):
            self.file.write(piece)
        self._note(name, digest.digest(), info.file_size)

    def add(self, name: str, data: bytes, *, executable: bool = False) -> None:
        """Add a file with new content."""
        packed = bytes(deflate.deflate_compress(data, _LEVEL))
        self._begin(name, zlib.crc32(data), len(packed), len(data), ZIP_DEFLATED, executable=executable)
        self.file.write(packed)
        self._note(name, hashlib.sha256(data).digest(), len(data))

    def finish(self, record: str) -> None:
        """Write RECORD and the directory."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*self.record, (record, "", "")])
        self.add(record, text.getvalue().encode())
        start = self.file.tell()
        for member in self.members:
            name = member.name.encode()
            mode = 0o100755 if member.executable else 0o100644
            entry = (
                b"PK\x01\x02", _UNIX | _VERSION, _VERSION, _flags(member.name), member.method, 0, _DATE,
                member.crc, member.packed, member.size, len(name), 0, 0, 0, 0, mode << 16, member.offset,
            )  # fmt: skip
            self.file.write(_CENTRAL.pack(*entry) + name)
        count, size = len(self.members), self.file.tell() - start
        self.file.write(_END.pack(b"PK\x05\x06", 0, 0, count, count, size, start, 0))

    def _begin(self, name: str, crc: int, packed: int, size: int, method: int, *, executable: bool) -> None:
        self.members.append(_Member(name, crc, packed, size, method, executable, self.file.tell()))
        encoded = name.encode()
        head = (b"PK\x03\x04", _VERSION, _flags(name), method, 0, _DATE, crc, packed, size, len(encoded), 0)
        self.file.write(_LOCAL.pack(*head) + encoded)

    def _note(self, name: str, digest: bytes, size: int) -> None:
        encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        self.record.append((name, f"sha256={encoded}", str(size)))


def repack(
    source: Path,
    folder: Path,
    *,
    platform_tag: str,
    file: str = "",
    version: str = "",
    replaced: Mapping[str, bytes] | None = None,
    added: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a wheel again under a platform tag and, if given, a version; return its path.

    `file` is its name, where the path has another; `replaced` has the new content of files by path; `added` are files
    for the dist-info folder.
    """
    name, old_version, *build, python, abi, _ = (file or source.name).removesuffix(".whl").split("-")
    version, tag = version or old_version, f"{python}-{abi}-{platform_tag}"
    new = {**(replaced or {})}
    info = f"{name}-{version}.dist-info"
    target = folder / f"{'-'.join([name, version, *build, tag])}.whl"
    with ZipFile(source) as archive, writing(target) as output:
        old_info = next(
            path for path in archive.namelist() if path.endswith(".dist-info/METADATA")
        ).partition("/")[0]
        new[f"{old_info}/METADATA"] = _with_version(archive.read(f"{old_info}/METADATA"), version)
        new[f"{old_info}/WHEEL"] = _with_tag(archive.read(f"{old_info}/WHEEL"), tag)
        made = _Archive(output)
        infos = [item for item in archive.infolist() if not item.is_dir()]
        for item in sorted(infos, key=lambda item: (item.filename.startswith(f"{old_info}/"), item.filename)):
            path = item.filename
            if path == f"{old_info}/RECORD":
                continue
            renamed = f"{info}/{path.partition('/')[2]}" if path.startswith(f"{old_info}/") else path
            if path in new:
                made.add(renamed, new[path], executable=bool((item.external_attr >> 16) & 0o111))
            else:
                made.copy(archive, item, renamed)
        for path, data in sorted((added or {}).items()):
            made.add(f"{info}/{path}", data)
        made.finish(f"{info}/RECORD")
    return target


def _compressed(source: ZipFile, info: ZipInfo) -> Iterator[bytes]:
    file = source.fp
    assert file is not None  # noqa: S101 - the archive is open
    file.seek(info.header_offset)
    *_, name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
    file.seek(name + extra, io.SEEK_CUR)
    left = info.compress_size
    while left:
        piece = file.read(min(left, _PIECE))
        if not piece:
            raise EOFError(info.filename)
        left -= len(piece)
        yield piece


def _with_version(metadata: bytes, version: str) -> bytes:
    head, blank, rest = metadata.partition(b"\n\n")
    return re.sub(rb"(?m)^Version: .*$", b"Version: " + version.encode(), head, count=1) + blank + rest


def _with_tag(wheel: bytes, tag: str) -> bytes:
    lines = [line for line in wheel.decode().splitlines() if line and not line.startswith("Tag:")]
    return "".join(f"{line}\n" for line in [*lines, f"Tag: {tag}"]).encode()


def _flags(name: str) -> int:
    return 0 if name.isascii() else _UTF8
