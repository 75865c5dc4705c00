"""Reads the names of a library's kernels and the size of their code, with NVIDIA's cuobjdump."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from imagefactory.errors import CheckError
from imagefactory.lock.audit.libraries import run_cuobjdump

_PIECE = re.compile(r"^Fatbin (elf|ptx) code:\n=+\narch = (sm_\d+)([af]?)$", re.MULTILINE)
_KERNEL = re.compile(r"\bSTO_ENTRY\s+(\S+)$", re.MULTILINE)
_TEXT = b".text."


@dataclass(frozen=True)
class KernelNames:
    """The kernels of a library that a chip can run, by their mangled names."""

    native: dict[str, int]
    """The size of the machine code of each."""
    translated: frozenset[str]
    """Kernels that the library also has as PTX, for the driver to translate."""


def read_names(
    library: Path, cuobjdump: Path, accepted: Collection[str], capability: str, scratch: Path
) -> KernelNames:
    """List the kernels of a library: those in cubins that a chip accepts, and those in PTX that is not newer."""
    listed = run_cuobjdump(cuobjdump, library, "-symbols", folder=scratch)
    _, *parts = _PIECE.split(listed)
    pieces = list(zip(*(iter(parts),) * 4, strict=True))  # kind, chip, suffix, symbols
    exact: defaultdict[str, list[str]] = defaultdict(list)
    translated: set[str] = set()
    for number, (kind, chip, suffix, symbols) in enumerate(pieces):
        if kind == "elf":
            exact[chip].append(chip + suffix)
            # PTX has no list of symbols; it stands right before the cubin that was compiled from it.
            older = int(chip.removeprefix("sm_")) <= int(capability.replace(".", ""))
            if number and older and pieces[number - 1][:3] == ("ptx", chip, ""):
                translated.update(_KERNEL.findall(symbols))
    native: dict[str, int] = {}
    for chip, chips in exact.items():
        if not set(chips).isdisjoint(accepted):
            for name, size in _sizes(library, cuobjdump, scratch / chip, chips, accepted):
                native[name] = max(size, native.get(name, 0))
    return KernelNames(native, frozenset(translated))


def _sizes(
    library: Path, cuobjdump: Path, folder: Path, chips: list[str], accepted: Collection[str]
) -> Iterator[tuple[str, int]]:
    """Yield the kernels in accepted cubins of a chip: cuobjdump does not tell 120 and 120f apart, its list does."""
    folder.mkdir()
    chip = chips[0].rstrip("af")
    run_cuobjdump(cuobjdump, library, "-xelf", "all", "-arch", chip, folder=folder)
    found = sorted(folder.glob("*.cubin"), key=lambda path: int(path.name.split(".")[-3]))
    if len(found) != len(chips):
        raise CheckError(
            "not-auditable",
            f"{library.name} cannot be taken apart.",
            where=library,
            why=f"cuobjdump lists {len(chips)} cubins of {chip}, and extracted {len(found)}.",
            fix="Check that the file is a complete shared library.",
        )
    for path, exact in zip(found, chips, strict=True):
        if exact in accepted:
            yield from kernels_of(path.read_bytes())


def kernels_of(cubin: bytes) -> Iterator[tuple[str, int]]:
    """Yield the kernels and functions of a cubin, which is an ELF file, with the size of their code."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    entry, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + number * entry) for number in range(count)]
    for section in sections:
        start = sections[names_at][4] + section[0]
        name = cubin[start : cubin.index(b"\0", start)]
        if name.startswith(_TEXT):
            yield name.removeprefix(_TEXT).decode(), section[5]
