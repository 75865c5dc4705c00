"""Names the processes that hold memory of a GPU, such as the engine of a server that was killed.

A container sees those of its own process namespace; the others are the host's to name.
"""

import re
from typing import NamedTuple

QUERY = ("--query-compute-apps=pid,process_name,used_gpu_memory", "--format=csv,noheader,nounits")
_ROW = re.compile(r"(\d+), (.*), (\d+|\[.*\]|N/A)")
_MIB = 1024 * 1024
SHOWN = 3
_GB = 1_000_000_000


class Holder(NamedTuple):
    """A process, and the bytes that it holds; None if nvidia-smi does not say."""

    process: int
    name: str
    held: int | None

    def __str__(self) -> str:
        name = self.name.split(" ")[0].rpartition("/")[2]
        known = f"process {self.process}" + ("" if self.name.startswith("[") else f" ({name})")
        return f"{known} holds {'memory' if self.held is None else f'{self.held / _GB:.1f} GB'} of the GPU"


def of(text: str) -> list[Holder]:
    """Read what nvidia-smi answers to QUERY; the process that holds most comes first."""
    rows = (_ROW.fullmatch(line.strip()) for line in text.splitlines())
    found = [Holder(int(row[1]), row[2], int(row[3]) * _MIB if row[3].isdecimal() else None) for row in rows if row]
    return sorted(found, key=lambda holder: -(holder.held or 0))


def describe(text: str) -> str:
    """Name the processes that hold most, for the end of a sentence."""
    return ", ".join(map(str, of(text)[:SHOWN]))
