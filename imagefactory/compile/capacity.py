"""Whether there is room for a compile: how many compilers at once, and enough memory and disk, before it starts."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from imagefactory.build.parallel import available_cores
from imagefactory.compile.settings import Cost
from imagefactory.errors.kernels import NotEnoughRoomError

GB = 1e9
_MEMINFO = Path("/proc/meminfo")
PART = 0.1
"""The share of the disk for everything that a compile of a few targets takes, at least."""


@dataclass(frozen=True)
class BuildMachine:
    """What this machine has to give."""

    cores: int
    memory_gb: float
    """What can be used without swapping."""

    @classmethod
    def this(cls) -> BuildMachine:
        """Look at this machine."""
        return cls(available_cores(), _available_memory() / GB)


def jobs_for(machine: BuildMachine, cost: Cost, asked: int = 0) -> int:
    """Say how many compilers run at once: as many as there are cores and as the memory carries."""
    carried = int(machine.memory_gb // cost.job_gb)
    jobs = asked or min(machine.cores, carried)
    if jobs < 1 or jobs * cost.job_gb > machine.memory_gb:
        wanted = max(jobs, 1)
        raise NotEnoughRoomError(
            f"There is not enough memory for {wanted} compiler{'s' if wanted > 1 else ''} at once.",
            where="this machine's memory",
            why=f"{machine.memory_gb:.1f} GB are available; {wanted} x {cost.job_gb:g} GB are needed.",
            fix=f"Ask for fewer (`--jobs {carried}`)." if carried else "Stop other programs, or add swap.",
        )
    return jobs


def refuse_full_disk(folder: Path, needed_gb: float, what: str) -> None:
    """Fail when a disk has too little space for what is to come."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free / GB
    if free < needed_gb:
        raise NotEnoughRoomError(
            f"There is not enough disk for {what}.",
            where=folder,
            why=f"{free:.1f} GB are free; about {needed_gb:.1f} GB are needed.",
            fix="Free some space, run `invoke clean`, or set FACTORY_CACHE to a folder on a larger disk.",
        )


def _available_memory() -> int:
    """Ask the kernel; where it does not say (no Linux), count on nothing being in the way."""
    try:
        for line in _MEMINFO.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
