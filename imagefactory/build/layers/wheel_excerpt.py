"""Reading single files of a wheel that is not downloaded, each checked by the wheel's RECORD.

A wheel's sha256 does not cover what is read in parts. RECORD does: it names every file with its hash. Whether the
RECORD itself is right is known from its own hash, which locks/layers.toml keeps for wheels that mods change, or is
checked later against the whole wheel.
"""

from __future__ import annotations

import base64
import csv
import io
import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zipfile import ZipFile, ZipInfo

from imagefactory.store.digests import Sha256, sha256_of

_RECORD = re.compile(r"[^/]+\.dist-info/RECORD")
_READ_BY_INSTALLERS = re.compile(
    r"[^/]+\.dist-info/(WHEEL|METADATA|RECORD|entry_points\.txt)|[^/]+\.data/scripts/.+"
)
_UNLISTED = re.compile(r"[^/]+\.dist-info/RECORD(\.jws|\.p7s)?")
_LARGEST = 2**32 - 1
_UTF8 = 0x800
_MOST_READ = 64 * 1024 * 1024


class NoExcerptError(Exception):
    """A wheel cannot be read in parts, or not safely; the message says why. It can still be downloaded."""


class _Row(NamedTuple):
    sha256: str
    size: int


def record_sha256(wheel: Path) -> Sha256 | None:
    """Hash the RECORD of a whole wheel; None if it has none, or several."""
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if _RECORD.fullmatch(name)]
        return sha256_of(archive.read(names[0])) if len(names) == 1 else None


class Excerpt:
    """A wheel that is read in parts."""

    def __init__(self, archive: ZipFile, known_record: Sha256 | None) -> None:
        """Read RECORD; if its hash is known, it must match."""
        self._archive = archive
        self._members = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        names = [name for name in self._members if _RECORD.fullmatch(name)]
        if len(names) != 1:
            raise NoExcerptError("it has no RECORD, or several")
        text = self._unpacked(names[0])
        self.record = sha256_of(text)
        if known_record not in (None, self.record):
            raise NoExcerptError("its RECORD is not the one in locks/layers.toml")
        self._rows = _rows(text)
        self._taken: dict[str, bytes] = {names[0]: text}
        listed = {name for name in self._rows if not _UNLISTED.fullmatch(name)}
        there = {name for name in self._members if not _UNLISTED.fullmatch(name)}
        if listed != there or len(self._members) != sum(not info.is_dir() for info in archive.infolist()):
            raise NoExcerptError("its directory and its RECORD name different files")

    def read(self, name: str) -> bytes | None:
        """Read a file and check it; None if the wheel has no such file."""
        if name not in self._members:
            return None
        if name not in self._taken:
            data = self._unpacked(name)
            if sha256_of(data) != self._rows[name].sha256 or len(data) != self._rows[name].size:
                raise NoExcerptError(f"{name} is not what RECORD says")
            self._taken[name] = data
        return self._taken[name]

    def write_hollow_wheel(self, target: BinaryIO) -> None:
        """Write a wheel that lists every file with its true size, but has only the content that installers read."""
        for name in self._members:
            if _READ_BY_INSTALLERS.fullmatch(name) and not _UNLISTED.fullmatch(name):
                self.read(name)
        directory = b""
        position = 0
        for name, info in self._members.items():
            data = self._taken.get(name, b"")
            size = len(data) if name in self._taken else self._rows[name].size if name in self._rows else 0
            header = _header(name, zlib.crc32(data), size)
            target.write(b"PK\x03\x04" + header + name.encode() + data)
            mode = struct.pack("<HHHII", 0, 0, 0, info.external_attr, position)
            directory += b"PK\x01\x02" + struct.pack("<H", 0x0314) + header + mode + name.encode()
            position += 4 + len(header) + len(name.encode()) + len(data)
        count = len(self._members)
        end = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), position, 0)
        target.write(directory + b"PK\x05\x06" + end)

    def _unpacked(self, name: str) -> bytes:
        info: ZipInfo = self._members[name]
        if info.file_size > _MOST_READ or info.compress_size > _MOST_READ:
            raise NoExcerptError(f"{name} is too large to read on its own")
        return self._archive.read(info)


def _rows(record: bytes) -> Mapping[str, _Row]:
    """Read RECORD; every file but RECORD itself must have a sha256 and a size."""
    rows: dict[str, _Row] = {}
    for row in csv.reader(io.StringIO(record.decode("utf-8"))):
        if len(row) != 3 or row[0] in rows:  # noqa: PLR2004 - path, hash, size
            raise NoExcerptError("its RECORD is malformed")
        name, fingerprint, size = row
        if _UNLISTED.fullmatch(name):
            rows[name] = _Row("", 0)
            continue
        algorithm, _, value = fingerprint.partition("=")
        if algorithm != "sha256" or not size.isdecimal() or int(size) > _LARGEST:
            raise NoExcerptError(f"its RECORD has no sha256 or no size for {name}")
        rows[name] = _Row(base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex(), int(size))
    return rows


def _header(name: str, crc: int, size: int) -> bytes:
    """Describe a member that is stored as it is."""
    return struct.pack("<HHHHHIIIHH", 20, _UTF8, 0, 0, 0x21, crc, size, size, len(name.encode()), 0)
