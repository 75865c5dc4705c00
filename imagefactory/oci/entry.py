"""What a layer is made of, before it is bytes: paths with metadata and a way to get at their content."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NewType

from imagefactory.store.digests import Sha256

ImagePath = NewType("ImagePath", str)
"""A path in the image: relative to `/`, forward slashes, no `.` or `..`, no trailing slash."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Content that is small enough to hold in memory."""

    data: bytes

    @property
    def size(self) -> int:
        """Count the bytes."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class RawSlice:
    """Content that lies uncompressed in a file on this machine."""

    file: Path
    offset: int
    size: int
    sha256: Sha256 | None = None
    """What a wheel's RECORD promises; Debian packages promise for the whole package."""


@dataclass(frozen=True, slots=True)
class DeflatedSlice:
    """Content that lies as a raw deflate stream in a file on this machine, as members of a zip do."""

    file: Path
    offset: int
    deflated: int
    crc32: int
    size: int
    sha256: Sha256 | None
    """What the wheel's RECORD promises, when it promises something."""


Content = Bytes | RawSlice | DeflatedSlice


class EntryKind(Enum):
    """The types of entry a layer may hold."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a layer. Time, owner names and order are decided when it is written, by the layer format."""

    path: ImagePath
    kind: EntryKind
    mode: int
    content: Content | None = None
    target: str = ""
    """What a symlink points at (verbatim), or the image path a hard link is another name of."""
    uid: int = 0
    gid: int = 0
