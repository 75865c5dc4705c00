"""Watches the GPUs of a container with its nvidia-smi while the server is measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from threading import Thread
from typing import Final

from imagefactory.assemble.engines.docker import daemon
from imagefactory.check.bench.result import BenchMachine, GpuUse
from imagefactory.check.smoke.containers import Container

_FIELDS: Final = ("index", "name", "driver_version", "memory.used", "power.draw", "clocks.sm")
_QUERY: Final = (f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits", "--loop=1")
_MEMORY_PEAKS: Final = ("/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory/memory.max_usage_in_bytes")


@dataclass
class GpuWatch:
    """What nvidia-smi has reported so far."""

    lines: list[str] = field(default_factory=list)

    def gpus(self) -> tuple[GpuUse, ...]:
        """Summarise the reports of each GPU."""
        reports: dict[str, list[list[str]]] = {}
        for line in self.lines:
            row = [part.strip() for part in line.split(",")]
            if len(row) == len(_FIELDS) and row[0].isdecimal():
                reports.setdefault(row[0], []).append(row)
        return tuple(_summary(found) for _, found in sorted(reports.items(), key=lambda item: int(item[0])))


@contextmanager
def watching_gpus(container: Container | None) -> Iterator[GpuWatch]:
    """Watch the GPUs that a container sees; without a container or nvidia-smi there is nothing to see."""
    watch = GpuWatch()
    if container is None:
        yield watch
        return
    with subprocess.Popen(  # noqa: S603 - the user's own docker
        ["docker", "exec", container.name, "nvidia-smi", *_QUERY],  # noqa: S607
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
    ) as process:
        reader = Thread(target=lambda: watch.lines.extend(process.stdout or ()), daemon=True)
        reader.start()
        try:
            yield watch
        finally:
            process.kill()
            reader.join(timeout=10)


def _summary(rows: list[list[str]]) -> GpuUse:
    def mean(column: int) -> float | None:
        values = [float(row[column]) for row in rows if re.fullmatch(r"\d+(\.\d+)?", row[column])]
        return round(fmean(values), 1) if values else None

    _, name, driver, *_ = rows[0]
    figures = {"memory_mb": mean(3), "power_w": mean(4), "clock_mhz": mean(5)}
    return GpuUse(name=name, driver=driver, samples=len(rows), **figures)


def peak_memory(container: Container | None) -> int:
    """Return the bytes that a container used at most; 0 if the kernel does not say."""
    if container is None:
        return 0
    found = container.execute("cat", *_MEMORY_PEAKS, timeout=30).stdout.split()
    return int(found[0]) if found and found[0].isdecimal() else 0


def this_machine() -> BenchMachine:
    """Describe this machine, which is the Docker daemon's too."""
    asked = daemon.ask()
    described = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    cpu = re.search(r"^(model name|CPU part)\s*:\s*(.+)$", described, re.MULTILINE)
    return BenchMachine(
        platform=f"linux/{asked.machine}",
        kernel=platform.release(),
        cpu=f"{cpu[1]} {cpu[2]}" if cpu else "",
        cpus=os.cpu_count() or 0,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        engine=f"Docker {asked.version}",
    )
