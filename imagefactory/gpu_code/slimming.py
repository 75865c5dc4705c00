"""Overwrites GPU code that a chip cannot load with zeros, which cost nothing in a compressed layer.

The driver chooses an entry of a container by the headers and never reads the others. Headers, offsets and sizes stay as
they are, so nothing else in the library changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from imagefactory.gpu_code.fatbins import Code, containers

RULE: Final = 1
"""Raise it when another byte would be overwritten: it is part of the key of every layer of wheels."""
Range = tuple[int, int]
"""An offset in a file, and a number of bytes."""


@dataclass(frozen=True)
class Slimming:
    """What is overwritten in a library for a chip, and how many bytes are kept and overwritten per target."""

    blanks: tuple[Range, ...] = ()
    kept: Mapping[str, int] = field(default_factory=dict)
    blanked: Mapping[str, int] = field(default_factory=dict)


def loads(code: Code, chip: tuple[int, int]) -> bool:
    """Return whether a chip, given as its compute capability, can load a cubin.

    One for exactly one chip (sm_121a) loads only there. Any other loads on chips of the same generation that are not
    older.
    """
    major, minor = divmod(code.chip, 10)
    if code.suffix == "a":
        return (major, minor) == chip
    return major == chip[0] and minor <= chip[1]


def survey(library: Iterable[bytes], chip: tuple[int, int]) -> Slimming:
    """Decide what a chip does not need of a library; raise NotUnderstoodError if that cannot be told.

    In each container, every cubin that the chip can load stays. If there is one, PTX and LTO-IR beside it are not used;
    if there is none, they stay.
    """
    blanks: list[Range] = []
    kept: Counter[str] = Counter()
    blanked: Counter[str] = Counter()
    for codes in containers(library):
        loadable = [code for code in codes if code.kind == "cubin" and loads(code, chip)]
        needed = loadable or [code for code in codes if code.kind != "cubin"]
        for code in codes:
            if code in needed:
                kept[code.target] += code.size
            elif code.size:
                blanked[code.target] += code.size
                blanks.append((code.offset, code.size))
    return Slimming(tuple(blanks), dict(sorted(kept.items())), dict(sorted(blanked.items())))


def blank(pieces: Iterable[bytes], blanks: Sequence[Range]) -> Iterator[bytes]:
    """Return a stream with ranges of it overwritten by zeros; the ranges are in order and do not overlap."""
    position, number = 0, 0
    for piece in pieces:
        end = position + len(piece)
        changed: bytearray | None = None
        while number < len(blanks) and blanks[number][0] < end:
            offset, size = blanks[number]
            first, last = max(offset, position), min(offset + size, end)
            if changed is None:
                changed = bytearray(piece)
            changed[first - position : last - position] = bytes(last - first)
            if offset + size > end:
                break
            number += 1
        yield piece if changed is None else bytes(changed)
        position = end
