"""The entries of a layer: paths with metadata and a way to read their content."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NewType

from imagefactory.gpu_code.slimming import Chip
from imagefactory.store.digests import Sha256

ImagePath = NewType("ImagePath", str)
"""A path in the image: relative to `/`, forward slashes, no `.` or `..`, no trailing slash."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Content in memory."""

    data: bytes

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class RawSlice:
    """Uncompressed content in a local file."""

    file: Path
    offset: int
    size: int
    sha256: Sha256 | None = None
    """The hash in a wheel's RECORD; Debian packages are hashed as a whole."""


@dataclass(frozen=True, slots=True)
class DeflatedSlice:
    """A raw deflate stream in a local file, as in a zip."""

    file: Path
    offset: int
    deflated: int
    crc32: int
    size: int
    sha256: Sha256 | None
    """The hash in the wheel's RECORD, if it has one."""


@dataclass(frozen=True, slots=True)
class Slimmed:
    """A library without the GPU code that a chip cannot load."""

    source: RawSlice | DeflatedSlice
    chip: Chip
    sha256: Sha256
    """Of the result."""

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.source.size


Content = Bytes | RawSlice | DeflatedSlice | Slimmed


class EntryKind(Enum):
    """The types of entry that a layer may contain."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a layer. The layer format determines time, owner names and order."""

    path: ImagePath
    kind: EntryKind
    mode: int
    content: Content | None = None
    target: str = ""
    """The target of a symlink (verbatim), or the image path of a hard link's original."""
    uid: int = 0
    gid: int = 0
