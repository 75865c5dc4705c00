"""Finds the GPU code in a library: fatbin containers, wherever they lie, read as a stream.

nvcc puts the code of a translation unit for several chips into one container: a header, then entries, each with a
header of its own that names the chip, and a payload. Containers are mostly in the section .nv_fatbin, but some
libraries have them elsewhere, so the whole file is searched for their magic number. A container counts only if its
entries fill it exactly; a library with anything else behind a valid header is not understood.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

MAGIC: Final = b"\x50\xed\x55\xba"  # 0xBA55ED50, little-endian
_CONTAINER: Final = struct.Struct("<IHHQ")  # magic, version, size of this header, size of all entries
_ENTRY: Final = struct.Struct("<HHIQIIIIIIQ")
"""Of its fields, these are used: kind (1st), size of this header (3rd) and of the payload, chip (8th), flags (last)."""
_LEAST_ENTRY, _MOST_ENTRY = 64, 4096  # bytes that an entry's header may have
_VERSION: Final = 1
_SPECIFIC, _FAMILY = 0x10_0000, 0x20_0000  # code for exactly one chip (sm_121a), or for a family (sm_120f)
_ELF: Final = b"\x7fELF\x02\x01"  # a 64-bit little-endian library; no other kind runs on our platforms

Kind = Literal["ptx", "cubin", "lto"]
_KINDS: Final[dict[int, Kind]] = {1: "ptx", 2: "cubin", 8: "lto"}
_PREFIXES: Final[dict[Kind, str]] = {"ptx": "compute_", "cubin": "sm_", "lto": "lto_"}


class NotUnderstoodError(Exception):
    """A library has something that is not what a fatbin container should be; the message says what and where."""


@dataclass(frozen=True, slots=True)
class Code:
    """One entry of a container: code for one target."""

    kind: Kind
    chip: int  # the number of the target: 121 for sm_121, sm_121a and sm_121f
    suffix: Literal["", "a", "f"]
    offset: int  # where the payload starts in the library
    size: int

    @property
    def target(self) -> str:
        return f"{_PREFIXES[self.kind]}{self.chip}{self.suffix}"


class Part(NamedTuple):
    """Some bytes of a library; all parts together are the whole of it, in order."""

    data: bytes
    code: Code | None = None  # the entry that they belong to
    header: bool = False  # whether they are an entry's header, not its payload
    last: bool = False  # whether a container ends here


def containers(library: Iterable[bytes]) -> Iterator[tuple[Code, ...]]:
    """Yield the entries of each container in a library that is read in pieces; fail like `parts`."""
    codes: list[Code] = []
    for part in parts(library):
        if part.code is not None and part.header:
            codes.append(part.code)
        if part.last:
            yield tuple(codes)
            codes.clear()


def parts(library: Iterable[bytes]) -> Iterator[Part]:
    """Take a library that is read in pieces apart; raise NotUnderstoodError as soon as something is wrong."""
    window = _Window(library)
    if window.peek(len(_ELF)) != _ELF:
        raise NotUnderstoodError("it is not a 64-bit little-endian ELF file")
    while True:
        yield from map(Part, window.until(MAGIC))
        head = window.peek(_CONTAINER.size)
        if len(head) < _CONTAINER.size:
            yield from map(Part, window.take(len(head)))
            return
        _, version, header, size = _CONTAINER.unpack(head)
        if (version, header) == (_VERSION, _CONTAINER.size):
            start = window.position
            yield from map(Part, window.take(header))
            yield from _entries(window, start, size)
            yield Part(b"", last=True)
        else:  # the number occurs in other data, such as the code that looks for it
            yield from map(Part, window.take(1))  # the search goes on behind its first byte


def _entries(window: _Window, start: int, size: int) -> Iterator[Part]:
    left = size
    while left:
        head = window.peek(_ENTRY.size)
        if len(head) < _ENTRY.size or left < _LEAST_ENTRY:
            raise NotUnderstoodError(f"the container at {start:#x} ends within an entry")
        number, _, header, payload, *_, chip, _, _, flags = _ENTRY.unpack(head)
        kind = _KINDS.get(number)
        if kind is None:
            raise NotUnderstoodError(f"the container at {start:#x} has an entry of the unknown kind {number}")
        if not _LEAST_ENTRY <= header <= _MOST_ENTRY or header + payload > left:
            raise NotUnderstoodError(f"the entries of the container at {start:#x} do not fill it exactly")
        if flags & _SPECIFIC and flags & _FAMILY:
            raise NotUnderstoodError(f"the container at {start:#x} has an entry for one chip and a family")
        suffix: Literal["", "a", "f"] = "a" if flags & _SPECIFIC else "f" if flags & _FAMILY else ""
        place = window.position + header
        code = Code(kind, chip, suffix, place, payload)
        yield Part(b"".join(window.take(header)), code, header=True)
        for data in window.take(payload):
            yield Part(data, code)
        if window.position < place + payload:
            raise NotUnderstoodError(f"the file ends within the container at {start:#x}")
        left -= header + payload


class _Window:
    """A view of a stream that only moves forward and holds little of it."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._buffer = b""
        self._start = 0  # of the buffer, in the stream
        self._next = 0  # in the buffer

    @property
    def position(self) -> int:
        return self._start + self._next

    def peek(self, size: int) -> bytes:
        """Return the next bytes without moving on; fewer at the end."""
        while len(self._buffer) - self._next < size and self._more():
            pass
        return self._buffer[self._next : self._next + size]

    def take(self, size: int) -> Iterator[bytes]:
        """Move on, and return what is passed, in pieces; the end may come earlier."""
        while size:
            data = self._buffer[self._next : self._next + size]
            if not data and not self._more():
                return
            if data:
                self._next += len(data)
                size -= len(data)
                yield data

    def until(self, pattern: bytes) -> Iterator[bytes]:
        """Move on to the next occurrence of some bytes, or to the end, and return what is passed, in pieces."""
        while (place := self._buffer.find(pattern, self._next)) < 0:
            # The last bytes stay: the next piece may complete the pattern.
            passed = max(self._next, len(self._buffer) - len(pattern) + 1)
            yield from self.take(passed - self._next)
            if not self._more():
                yield from self.take(len(self._buffer) - self._next)
                return
        yield from self.take(place - self._next)

    def _more(self) -> bool:
        """Hold the next piece of the stream, and nothing that lies behind us."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._start += self._next
        self._buffer = self._buffer[self._next :] + piece
        self._next = 0
        return True
