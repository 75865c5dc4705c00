"""Reads which GPU targets a shared library has code for, with NVIDIA's cuobjdump."""

from __future__ import annotations

import mmap
import re
import subprocess
from collections import Counter
from pathlib import Path

from imagefactory.errors.kernels import AuditError
from imagefactory.locks.kernels import GpuCode

_CODE = re.compile(r"^Fatbin (elf|ptx) code:\n=+\narch = (sm_\d+[af]?)$", re.MULTILINE)
_NOTHING = "does not contain device code"


def read_kernels(library: Path, cuobjdump: Path) -> GpuCode:
    """Count the cubins and PTX modules of a library per GPU target.

    This uses the plain dump, not --list-elf: the list prints sm_120 for both 120 and 120f, and that difference decides
    whether the code runs on other GPUs of the family.
    """
    done = subprocess.run(  # noqa: S603 - a pinned program on a file of ours
        [cuobjdump, library], capture_output=True, text=True, errors="replace", check=False
    )
    said = done.stderr.strip() or done.stdout.strip()
    if done.returncode and _NOTHING not in done.stdout + done.stderr:
        raise AuditError(
            f"{library.name} cannot be inspected.",
            where=library,
            why=said[:200] or f"cuobjdump ended with {done.returncode}",
            fix="Check that the file is a complete shared library.",
        )
    found = _CODE.findall(done.stdout)
    return GpuCode(
        cubins=dict(sorted(Counter(arch for kind, arch in found if kind == "elf").items())),
        ptx=dict(sorted(Counter(arch for kind, arch in found if kind == "ptx").items())),
        fp4=_mentions(library, b"nvfp4"),
    )


def _mentions(library: Path, word: bytes) -> bool:
    """Whether a file contains a word, without reading it into memory."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(word) >= 0
