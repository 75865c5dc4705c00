"""Checks that memory and disk suffice for a compile, and decides how many compilers run at once."""

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
"""The share of a whole compile's disk space that a compile of a few targets needs, at least."""


@dataclass(frozen=True)
class BuildMachine:
    """The resources of the machine that compiles."""

    cores: int
    memory_gb: float
    """Memory that can be used without swapping."""

    @classmethod
    def this(cls) -> BuildMachine:
        """Return the resources of this machine."""
        return cls(available_cores(), _available_memory() / GB)

    def free_gb(self, folder: Path) -> float:
        """Return the free space on the disk of a folder, which need not exist yet."""
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        return shutil.disk_usage(existing).free / GB


def jobs_for(machine: BuildMachine, cost: Cost, asked: int = 0) -> int:
    """Return how many compilers run at once: one per core, as long as there is memory for them."""
    fitting = int(machine.memory_gb // cost.job_gb)
    jobs = asked or min(machine.cores, fitting)
    if jobs < 1 or jobs > fitting:
        wanted = max(jobs, 1)
        raise NotEnoughRoomError(
            f"There is not enough memory for {wanted} compiler{'s' if wanted > 1 else ''} at once.",
            where="this machine's memory",
            why=f"{machine.memory_gb:.1f} GB are available; {wanted} x {cost.job_gb:g} GB are needed.",
            fix=f"Ask for fewer (`--jobs {fitting}`)." if fitting else "Stop other programs, or add swap.",
        )
    return jobs


def refuse_full_disk(machine: BuildMachine, folder: Path, needed_gb: float, what: str) -> None:
    """Raise an error if the disk of a folder has too little space."""
    free = machine.free_gb(folder)
    if free < needed_gb:
        raise NotEnoughRoomError(
            f"There is not enough disk space for {what}.",
            where=folder,
            why=f"{free:.1f} GB are free; about {needed_gb:.1f} GB are needed.",
            fix="Free some space, run `invoke clean`, or set FACTORY_CACHE to a folder on a larger disk.",
        )


def _available_memory() -> int:
    """Return the available memory, or all memory on systems that do not report it (not Linux)."""
    try:
        for line in _MEMINFO.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
