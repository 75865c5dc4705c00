"""Code that a chip cannot load is overwritten, and nothing else."""

import random
import struct

import pytest

from imagefactory.gpu_code.fatbins import MAGIC, Code, NotUnderstoodError, containers
from imagefactory.gpu_code.slimming import Tally, loads, slim
from tests.fixtures.fatbins import Entry, container, in_pieces, library

GB10, RTX5090, B200, H100 = (12, 1), (12, 0), (10, 0), (9, 0)


def slimmed(data: bytes, chip: tuple[int, int] = GB10, piece: int = 7) -> tuple[bytes, Tally]:
    tally = Tally()
    return b"".join(slim(in_pieces(data, piece), chip, tally)), tally


def kept(chip: tuple[int, int], *targets: str) -> list[str]:
    _, tally = slimmed(library(container(*targets)), chip)
    assert {*tally.kept} | {*tally.blanked} == {*targets}
    return sorted(tally.kept)


@pytest.mark.parametrize(
    ("target", "chips"),
    [
        ("sm_121a", [GB10]),
        ("sm_120a", [RTX5090]),
        ("sm_120f", [GB10, RTX5090]),
        ("sm_120", [GB10, RTX5090]),
        ("sm_100f", [B200]),
        ("sm_103", []),
        ("sm_90a", [H100]),
        ("sm_89", []),
    ],
)
def test_chip_loads_code_of_its_generation(target: str, chips: list[tuple[int, int]]) -> None:
    [[code]] = containers([library(container(target))])
    assert [chip for chip in (GB10, RTX5090, B200, H100) if loads(code, chip)] == chips
    assert loads(Code("cubin", 100, "f", 0, 1), (10, 3))
    assert not loads(Code("cubin", 100, "a", 0, 1), (10, 3))


def test_ptx_stays_where_nothing_native_is() -> None:
    assert kept(GB10, "sm_90", "sm_120a", "compute_120", "lto_75") == ["compute_120", "lto_75"]
    assert kept(GB10, "sm_90", "sm_120f", "sm_120", "compute_120", "lto_75") == ["sm_120", "sm_120f"]
    assert kept(RTX5090, "sm_120a", "sm_121a", "compute_120") == ["sm_120a"]


def test_every_container_is_judged_on_its_own() -> None:
    data = library(container("sm_80", "compute_80"), container("sm_80", "sm_121a", "compute_80"))
    _, tally = slimmed(data)
    size = len(Entry("").code)
    assert tally.kept == {"compute_80": size, "sm_121a": size}
    assert tally.blanked == {"compute_80": size, "sm_80": 2 * size}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("piece", [1, 100, 1 << 20])
def test_only_the_payloads_change(order: tuple[int, ...], piece: int) -> None:
    entries = [Entry("sm_90", b"N" * 500), Entry("sm_121a", b"Y" * 300), Entry("compute_90", b"P" * 200)]
    data = library(b"before", container(*(entries[number] for number in order)), b"after")
    result, _ = slimmed(data, piece=piece)
    assert result == data.replace(b"N" * 500, bytes(500)).replace(b"P" * 200, bytes(200))
    again, tally = slimmed(result)
    assert (again, tally.kept) == (result, {"sm_121a": 300})


def test_library_without_code_for_the_chip_keeps_its_headers_alone() -> None:
    data = library(container("sm_90a"), container("sm_100f"))
    result, tally = slimmed(data)
    code = Entry("").code
    assert result == data.replace(code, bytes(len(code)))
    assert (tally.kept, tally.blanked) == ({}, {"sm_100f": 8, "sm_90a": 8})


def may_change(data: bytes) -> set[int]:
    """List the bytes that the rule names for gb10, read from a whole file with nothing but offsets."""
    found: set[int] = set()
    place = data.find(MAGIC)
    while place >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, place + 4)
        if (version, header) != (1, 16):
            place = data.find(MAGIC, place + 1)
            continue
        entries, at = [], place + 16
        while at < place + 16 + size:
            kind, length, payload = struct.unpack_from("<H2xIQ", data, at)
            chip, flags = struct.unpack_from("<I8xQ", data, at + 28)
            fits = chip == 121 if flags & 0x10_0000 else chip in {120, 121}
            entries.append((kind == 2, fits, range(at + length, at + length + payload)))
            at += length + payload
        native = any(cubin and fits for cubin, fits, _ in entries)
        for cubin, fits, payload in entries:
            if not (fits if cubin else not native):
                found.update(payload)
        place = data.find(MAGIC, at)
    return found


@pytest.mark.parametrize("rounds", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_libraries_lose_no_byte_that_the_rule_does_not_name(rounds: int) -> None:
    """Sizes, kinds, chips and flags are changed at random, and containers are put into each other."""
    chance = random.Random(170)
    names = ["compute_80", "sm_80", "sm_90a", "sm_100f", "sm_120", "sm_120a", "sm_120f", "sm_121a", "lto_75"]
    changes = refused = 0
    for _ in range(rounds):
        parts = [
            container(*(Entry(name, chance.randbytes(chance.randrange(200))) for name in chosen))
            for chosen in (chance.sample(names, chance.randrange(1, 5)) for _ in range(3))
        ]
        data = bytearray(library(*parts, container(Entry("sm_90", parts[0])), MAGIC + b"other"))
        for _ in range(chance.randrange(4)):
            header = data.find(MAGIC, chance.randrange(len(data)))
            place = header + chance.randrange(4, 64) if 0 <= header < len(data) - 64 else -1
            data[place] = chance.randrange(256)
        whole = bytes(data[: len(data) - chance.choice((0, 0, 0, 30))])
        try:
            result, _ = slimmed(whole, piece=chance.randrange(1, 300))
        except NotUnderstoodError:
            refused += 1
            continue
        changed = {at for at, (old, new) in enumerate(zip(whole, result, strict=True)) if old != new}
        assert changed == {at for at in may_change(whole) if whole[at]}
        changes += bool(changed)
    assert changes > rounds // 4
    assert refused > rounds // 10
