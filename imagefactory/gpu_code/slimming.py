"""Overwrites GPU code that a chip cannot load with zeros, which cost nothing in a compressed layer.

The driver chooses an entry of a container by the headers and never reads the others. Headers, offsets and sizes stay as
they are, so nothing else in the library changes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from imagefactory.gpu_code.fatbins import Code, parts

RULE: Final = 1  # raise it when another byte would be overwritten: every layer of wheels has it in its key
Chip = tuple[int, int]  # a compute capability
_PIECE: Final = 1 << 20  # bytes that are returned at a time, or more


@dataclass
class Tally:
    """How many bytes of a library are kept and overwritten, per target."""

    kept: Counter[str] = field(default_factory=Counter)
    blanked: Counter[str] = field(default_factory=Counter)

    def count(self, codes: Sequence[Code], chip: Chip) -> None:
        loadable = [code for code in codes if code.kind == "cubin" and loads(code, chip)]
        needed = loadable or [code for code in codes if code.kind != "cubin"]
        for code in codes:
            if code in needed:
                self.kept[code.target] += code.size
            elif code.size:
                self.blanked[code.target] += code.size


def chip_of(capability: str) -> Chip:
    major, _, minor = capability.partition(".")
    return int(major), int(minor)


def loads(code: Code, chip: Chip) -> bool:
    """Return whether a chip can load a cubin.

    One for exactly one chip (sm_121a) loads only there. Any other loads on chips of the same generation that are not
    older.
    """
    major, minor = divmod(code.chip, 10)  # 121 is 12.1
    if code.suffix == "a":
        return (major, minor) == chip
    return major == chip[0] and minor <= chip[1]


def slim(library: Iterable[bytes], chip: Chip, tally: Tally | None = None) -> Iterator[bytes]:
    """Overwrite what a chip does not need of a library that is read in pieces.

    In each container, every cubin that the chip can load stays. If there is one, PTX and LTO-IR beside it are not used;
    if there is none, they stay. What follows PTX is held back until that is known, at most to the end of the container.
    After a NotUnderstoodError, what was returned until then is of no use.
    """
    ready: list[bytes] = []
    size = 0
    undecided: list[int] = []  # the places of PTX and LTO-IR in `ready`
    codes: list[Code] = []
    native = False
    for data, code, header, last in parts(library):
        ready.append(data)
        size += len(data)
        if code is not None and header:
            codes.append(code)
            native = native or (code.kind == "cubin" and loads(code, chip))
        elif code is not None and code.kind != "cubin":
            undecided.append(len(ready) - 1)
        elif code is not None and not loads(code, chip):
            ready[-1] = bytes(len(data))
        if native and undecided:
            for place in undecided:
                ready[place] = bytes(len(ready[place]))
            undecided.clear()
        if last:
            if tally is not None:
                tally.count(codes, chip)
            undecided.clear()
            codes.clear()
            native = False
        if size >= _PIECE and not undecided:
            yield b"".join(ready)
            ready.clear()
            size = 0
    yield b"".join(ready)
