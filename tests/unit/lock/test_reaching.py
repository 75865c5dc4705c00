"""The kernels that vLLM calls on a chip are found by name; an empty one counts as missing."""

from __future__ import annotations

import json
import re
import stat
import struct
import sys
from pathlib import Path

import pytest

from imagefactory.lock.audit import reaching
from imagefactory.lock.audit.libraries import read_names
from imagefactory.lock.audit.reaching import Reached, calls, reaches, refuse_unreached
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises

Kernels = dict[str, int]
Piece = tuple[str, str, Kernels]
FULL, EMPTY = 4096, 384
ACCEPTED = ["sm_121a", "sm_120f", "sm_120"]
MARLIN = "_ZN6marlin6MarlinILl1125899906909960ELl1E"
NORM = "_ZN4vllm15rms_norm_kernelIfEEv"

CUOBJDUMP = """\
#!{python}
import json, pathlib, sys
pieces = json.loads(pathlib.Path(sys.argv[-1]).read_text())
if sys.argv[1] == "-symbols":
    for kind, chip, kernels in pieces:
        print(f"\\nFatbin {{kind}} code:\\n================\\narch = {{chip}}\\nhost = linux\\n\\nsymbols:")
        for name in kernels if kind == "elf" else ():
            print("STT_FUNC         STB_GLOBAL STO_ENTRY      " + name)
else:
    base = sys.argv[4]
    cubins = [kernels for kind, chip, kernels in pieces if kind == "elf" and chip.rstrip("af") == base]
    for number, kernels in enumerate(cubins[:{most}], 1):
        pathlib.Path(f"lib.abi3.{{number}}.{{base}}.cubin").write_bytes(bytes.fromhex(kernels["cubin"]))
"""


def cubin(kernels: Kernels) -> bytes:
    """Make an ELF file with a section of code for each kernel."""
    names, sections = b"\0.names\0", [struct.pack("<IIQQQQQQ", 0, 0, 0, 0, 0, 0, 0, 0) + bytes(8)]
    for name, size in kernels.items():
        sections.append(struct.pack("<IIQQQQQQ", len(names), 1, 6, 0, 64, size, 0, 0) + bytes(8))
        names += f".text.{name}".encode() + b"\0"
    sections.append(struct.pack("<IIQQQQQQ", 1, 3, 0, 0, 64, len(names), 0, 0) + bytes(8))
    table = b"".join(sections)
    head = b"\x7fELF\2\1" + bytes(34) + struct.pack("<Q", 64 + len(names)) + bytes(10)
    head += struct.pack("<HHH", 64, len(sections), len(sections) - 1)
    return head + names + table


def library(folder: Path, *pieces: Piece, name: str = "_C.abi3.so") -> Path:
    """Write what the stand-in for cuobjdump reads instead of a library."""
    path = folder / name
    listed = [(kind, chip, {**kernels, "cubin": cubin(kernels).hex()}) for kind, chip, kernels in pieces]
    path.write_text(json.dumps(listed))
    return path


def program(folder: Path, most: int = 99) -> Path:
    path = folder / "cuobjdump"
    path.write_text(CUOBJDUMP.format(python=sys.executable, most=most))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(reaching, "cuobjdump", lambda _: program(tmp_path))
    return Project(REPOSITORY, Store(tmp_path / "store"))


def test_only_cubins_that_the_chip_accepts_count(tmp_path: Path) -> None:
    made = library(
        tmp_path,
        ("elf", "sm_120", {"general": FULL}),
        ("elf", "sm_120a", {"other chip": FULL}),
        ("elf", "sm_120f", {"family": FULL}),
        ("elf", "sm_90", {"older": FULL}),
        ("ptx", "sm_80", {}),
        ("elf", "sm_80", {"translated": FULL}),
        ("ptx", "sm_90a", {}),
        ("elf", "sm_90a", {"bound": FULL}),
    )
    (tmp_path / "scratch").mkdir()
    found = read_names(made, program(tmp_path), ACCEPTED, "12.1", tmp_path / "scratch")
    assert found.native == {"general": FULL, "family": FULL}
    assert {name for name in found.translated if name != "cubin"} == {"translated"}


def test_library_that_comes_apart_wrongly_is_an_error(tmp_path: Path) -> None:
    made = library(tmp_path, ("elf", "sm_120", {"a": FULL}), ("elf", "sm_120", {"b": FULL}))
    (tmp_path / "scratch").mkdir()
    with raises("not-auditable", match="taken apart"):
        read_names(made, program(tmp_path, most=1), ACCEPTED, "12.1", tmp_path / "scratch")


def outcome(found: list[Reached], call: str) -> str:
    return next(one.outcome for one in found if one.call.call == call)


def test_calls_find_native_translated_empty_and_no_kernels(project: Project, tmp_path: Path) -> None:
    repack = "_ZN6marlin25gptq_marlin_repack_kernelILi256E"
    made = library(
        tmp_path,
        ("elf", "sm_121a", {MARLIN: FULL, NORM: EMPTY}),
        ("ptx", "sm_80", {}),
        ("elf", "sm_80", {repack: FULL}),
    )
    found = reaches(project, str(made), "gb10")
    assert outcome(found, "marlin_gemm") == "native"
    assert outcome(found, "gptq_marlin_repack") == "jit"
    assert outcome(found, "rms_norm") == "empty"
    assert outcome(found, "marlin_gemm, FP8 activations") == "missing"
    assert not [one for one in found if one.call.library.startswith("_moe_C")], "a library is judged alone"
    with raises("kernel-missing") as caught:
        refuse_unreached("it", found)
    assert "rms_norm: 1 compiled to nothing: 384 bytes" in caught.value.why
    assert "gptq_marlin_repack" not in caught.value.where
    refuse_unreached("it", [one for one in found if one.works])


def test_arch_without_known_calls_is_an_error(project: Project, tmp_path: Path) -> None:
    with raises("not-auditable", match="not known what vLLM calls"):
        reaches(project, str(library(tmp_path, ("elf", "sm_90a", {MARLIN: FULL}))), "h100")


def test_calls_of_another_server_are_not_known(project: Project) -> None:
    with raises("not-auditable", match=r"not known what SGLang calls in gemma4-31b@sglang-0\.5\.21 on gb10"):
        reaches(project, "gemma4-31b@sglang-0.5.21")


def test_calls_are_described_once_each() -> None:
    found = calls("12.1")
    assert found == calls("12.0")
    assert len({call.call for call in found}) == len(found) > 15
    assert len({(call.library, call.kernel) for call in found}) == len(found)
    for call in found:
        re.compile(call.kernel)
