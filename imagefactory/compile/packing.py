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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import deflate

from imagefactory.store.atomic import writing

_LEVEL: Final = 6
_DATE: Final = (1980, 1, 2, 0, 0, 0)
"""The first of January is before the first date of zip in some time zones."""
_LOCAL_HEADER: Final = 30
_PIECE: Final = 1 << 20


class _Archive:
    """Writes a zip file without anything that differs between machines, and notes its files for RECORD."""

    def __init__(self, file: BinaryIO) -> None:
        self.zip = ZipFile(file, "w")
        self.record: list[tuple[str, str, str]] = []

    def copy(self, source: ZipFile, info: ZipInfo, name: str) -> None:
        """Copy a member of another archive with its compressed bytes."""
        digest = hashlib.sha256()
        with source.open(info) as content:  # also checks the CRC
            while piece := content.read(_PIECE):
                digest.update(piece)
        entry = _entry(name, executable=_is_executable(info))
        entry.compress_type, entry.CRC = info.compress_type, info.CRC
        entry.compress_size, entry.file_size = info.compress_size, info.file_size
        self._write(entry, _compressed(source, info), digest.digest())

    def add(self, name: str, data: bytes, *, executable: bool = False) -> None:
        """Add a file with new content."""
        packed = bytes(deflate.deflate_compress(data, _LEVEL))
        entry = _entry(name, executable=executable)
        entry.compress_type, entry.CRC = ZIP_DEFLATED, zlib.crc32(data)
        entry.compress_size, entry.file_size = len(packed), len(data)
        self._write(entry, [packed], hashlib.sha256(data).digest())

    def finish(self, record: str) -> None:
        """Write RECORD and the directory."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*self.record, (record, "", "")])
        self.add(record, text.getvalue().encode())
        self.zip.close()

    def _write(self, entry: ZipInfo, packed: Iterable[bytes], digest: bytes) -> None:
        # zipfile compresses what it is given; it has no way to take what is compressed already.
        file = self.zip.fp
        assert file is not None  # noqa: S101 - the archive is open
        entry.header_offset = file.tell()
        file.write(entry.FileHeader(zip64=False))
        for piece in packed:
            file.write(piece)
        self.zip.filelist.append(entry)
        self.zip.start_dir = file.tell()
        encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        self.record.append((entry.filename, f"sha256={encoded}", str(entry.file_size)))


def _entry(name: str, *, executable: bool) -> ZipInfo:
    entry = ZipInfo(name, _DATE)
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    return entry


def _is_executable(info: ZipInfo) -> bool:
    return bool((info.external_attr >> 16) & 0o111)


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
                made.add(renamed, new[path], executable=_is_executable(item))
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
    header = file.read(
        _LOCAL_HEADER
    )  # its last four bytes are the lengths of the name and of the extra field
    file.seek(sum(struct.unpack("<HH", header[-4:])), io.SEEK_CUR)
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
