"""Runs a compile in a container that is removed with the process; memory and disk decide how many compilers run."""

from __future__ import annotations

import io
import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import requests
from docker.errors import DockerException

from imagefactory.assemble.engines.docker.daemon import client_for, reader
from imagefactory.assemble.parallel import available_cores
from imagefactory.compile.settings import Cost
from imagefactory.errors import MachineError
from imagefactory.store.progress import Say
from imagefactory.store.signals import ending_in_order

LABEL = "imagefactory.compile"
_SHOWN = 14  # how many lines of a failed compile are shown; the rest is in the log
_TELLING = ("error", "Error", "FAILED", "fatal", "Killed", "FACTORY-UNKNOWN", "No space left")


@dataclass(frozen=True)
class Mount:
    """A folder of this machine, and its fixed path in the container."""

    folder: Path
    place: str
    read_only: bool = False


@dataclass(frozen=True)
class Ended:
    """A container's exit status, and the lines of output that explain it."""

    status: int
    telling: tuple[str, ...]


def run(
    image: str,
    command: Sequence[str],
    *,
    key: str,
    mounts: Sequence[Mount],
    environment: Mapping[str, str],
    log: Path,
    hear: Say,
    network: str = "none",
) -> Ended:
    """Run a command in a container, as the current user; output goes to the log and to `hear`."""
    client = client_for(
        "docker run",
        "The Docker daemon cannot run the compile.",
        "Start Docker, check DOCKER_HOST, and run it again: what is compiled already is kept.",
        timeout=None,  # a single object can take many minutes without any output
    )
    with ending_in_order(), client as docker:
        # One of a run that was killed would keep writing to the same folders.
        for left_over in docker.containers.list(all=True, filters={"label": f"{LABEL}={key}"}):
            left_over.remove(force=True)
        container = docker.containers.create(
            image,
            list(command),
            environment=dict(environment),
            labels={LABEL: key},
            network_mode=network,
            user=f"{os.getuid()}:{os.getgid()}",  # the user owns what it writes
            volumes={
                str(mount.folder): {"bind": mount.place, "mode": "ro" if mount.read_only else "rw"} for mount in mounts
            },
            working_dir="/factory",
        )
        output: Iterable[bytes] = ()
        try:
            container.start()
            output = container.logs(stream=True, follow=True)
            telling = _listen(lines(output), log, hear)
            status = int(container.wait()["StatusCode"])
        finally:
            with suppress(DockerException, requests.RequestException):
                container.remove(force=True)
                deque(output, maxlen=0)  # drain the stream, which closes its connection
    return Ended(status, telling)


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    text = io.TextIOWrapper(reader(iter(chunks)), "utf-8", "replace", newline="\n")
    return (line.rstrip("\r\n") for line in text)


def _listen(output: Iterable[str], log: Path, hear: Say) -> tuple[str, ...]:
    last: deque[str] = deque(maxlen=_SHOWN)
    telling: deque[str] = deque(maxlen=_SHOWN)
    with log.open("a", encoding="utf-8") as file:
        for line in output:
            file.write(f"{line}\n")
            file.flush()
            last.append(line)
            if any(word in line for word in _TELLING):
                telling.append(line)
            hear(line)
    return tuple(telling) or tuple(last)


GB = 1e9
_MEMINFO = Path("/proc/meminfo")
PART = 0.1  # the share of a whole compile's disk space that a graft needs, at least


@dataclass(frozen=True)
class BuildMachine:
    """The resources of the machine that compiles."""

    cores: int
    memory_gb: float  # memory that can be used without swapping

    @classmethod
    def this(cls) -> BuildMachine:
        return cls(available_cores(), _available_memory() / GB)

    def free_gb(self, folder: Path) -> float:
        """Return the free space on the disk of a folder, which need not exist yet."""
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        return shutil.disk_usage(existing).free / GB


def jobs_for(machine: BuildMachine, cost: Cost, requested: int = 0) -> int:
    """Return how many compilers run at once: one per core, as long as there is memory for them."""
    fitting = int(machine.memory_gb // cost.job_gb)
    jobs = requested or min(machine.cores, fitting)
    if jobs < 1 or jobs > fitting:
        compilers = max(jobs, 1)
        raise MachineError(
            "no-room",
            f"There is not enough memory for {compilers} compiler{'s' if compilers > 1 else ''} at once.",
            where="this machine's memory",
            why=f"{machine.memory_gb:.1f} GB are available; {compilers} x {cost.job_gb:g} GB are needed.",
            fix=f"Ask for fewer (`--jobs {fitting}`)." if fitting else "Stop other programs, or add swap.",
        )
    return jobs


def refuse_full_disk(machine: BuildMachine, folder: Path, needed_gb: float) -> None:
    free = machine.free_gb(folder)
    if free < needed_gb:
        raise MachineError(
            "no-room",
            "There is not enough disk space for the objects.",
            where=folder,
            why=f"{free:.1f} GB are free; about {needed_gb:.1f} GB are needed.",
            fix="Free some space, run `./inv clean`, or set FACTORY_CACHE to a folder on a larger disk.",
        )


def _available_memory() -> int:
    """Return the available memory, or all memory on systems that do not report it (not Linux)."""
    try:
        for line in _MEMINFO.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024  # what it calls kB are KiB (proc_meminfo(5))
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
