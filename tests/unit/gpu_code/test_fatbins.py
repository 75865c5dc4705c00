"""Containers of GPU code are found by their structure, wherever they lie."""

import struct

import pytest

from imagefactory.gpu_code.fatbins import MAGIC, NotUnderstoodError, containers
from tests.fixtures.fatbins import ELF, Entry, container, in_pieces, library


def targets(data: bytes, size: int = 7) -> list[list[str]]:
    return [[code.target for code in codes] for codes in containers(in_pieces(data, size))]


def test_entries_are_told_apart_by_kind_chip_and_suffix() -> None:
    names = ["compute_80", "sm_90a", "sm_100f", "sm_120", "sm_121a", "lto_75"]
    assert targets(library(container(*names), container("sm_121"))) == [names, ["sm_121"]]


@pytest.mark.parametrize("size", [1, 3, 64, 1 << 20])
def test_payloads_are_located_however_the_file_is_read(size: int) -> None:
    entries = [Entry("sm_120", b"A" * 100, header=112), Entry("compute_90", b"B" * 33)]
    data = library(b"x" * 41, container(*entries))
    [codes] = containers(in_pieces(data, size))
    assert [data[code.offset :][: code.size] for code in codes] == [b"A" * 100, b"B" * 33]


def test_magic_in_other_data_is_passed_over_and_a_library_without_gpu_code_has_no_containers() -> None:
    elsewhere = MAGIC + b"compared with this number"
    inside = Entry("sm_120", b"\x28\xb5\x2f\xfd" + container("sm_90"))
    data = library(elsewhere, container(inside), MAGIC[:3], MAGIC)
    assert targets(data) == [["sm_120"]]
    assert targets(library(b"nothing")) == []
    assert targets(library(container())) == [[]]


UNKNOWN = struct.pack("<HHIQIIIIIIQ", 64, 0x101, 64, 8, 0, 0x40, 0, 120, 0, 0, 0).ljust(64, b"\0") + b"newcode!"
BOTH = bytearray(container("sm_120a"))
BOTH[16 + 40 : 16 + 48] = struct.pack("<Q", 0x30_8011)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (library(container("sm_120"), start=b"\x7fELF\x01\x01"), "not a 64-bit"),
        (b"", "not a 64-bit"),
        (library(container("sm_120", size=10_000)), "ends within|do not fill"),
        (library(container("sm_120", size=71)), "do not fill it exactly"),
        (library(container("sm_120", "sm_90", size=100)), "ends within an entry"),
        (library(container(Entry("sm_120", header=63))), "do not fill it exactly"),
        (library(container(Entry("sm_120", header=8192))), "do not fill it exactly"),
        (library(MAGIC + struct.pack("<HHQ", 1, 16, len(UNKNOWN)) + UNKNOWN), "unknown kind 64"),
        (library(bytes(BOTH)), "one chip and a family"),
        (library(container("sm_120", "sm_90"))[:-40], "ends within"),
        (ELF + container("sm_120")[:-1], "ends within the container"),
        (ELF + MAGIC + struct.pack("<HHQ", 1, 16, 2**63), "ends within an entry"),
    ],
)
def test_what_is_not_understood_is_named(data: bytes, why: str) -> None:
    with pytest.raises(NotUnderstoodError, match=why):
        targets(data)
