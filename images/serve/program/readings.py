"""Reads the machine's GPUs, driver, memory and disk.

They come from NVML (the library behind nvidia-smi) and /proc, or from the JSON file in FACTORY_READINGS, which
describes another machine.
"""

import ctypes
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from . import heat, holders
from . import network as networks
from .errors import StartError

DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
MEMINFO, CGROUP = "/proc/meminfo", "/sys/fs/cgroup"
_KIB = 1024
SIZES = range(1 << 60)
"""Bytes that a machine or a file can have."""


class Gpu(NamedTuple):
    """A GPU; `total` and `free` are None if it shares the host's memory, as GB10 does."""

    name: str
    capability: str
    total: int | None = None
    free: int | None = None


class Readings(NamedTuple):
    """The facts about a machine; None where unknown."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    memory_total: int | None = None
    memory_available: int | None = None
    disk_free: int | None = None
    shared_memory: int | None = None
    """The size of /dev/shm, 64 MB by default in Docker."""
    state: str = ""
    """What nvidia-smi says about heat, power and clocks."""
    network: networks.Network = networks.Network(())
    kernel: str = ""
    processes: str = ""
    """What nvidia-smi says about processes that hold memory of the GPU."""

    @property
    def unified(self) -> bool:
        return bool(self.gpus) and self.gpus[0].total is None


def read(cache: str) -> Readings:
    """Read the facts about this machine; `cache` is the folder for downloaded models."""
    recorded = os.environ.get("FACTORY_READINGS")
    if recorded:
        return _recorded(recorded)
    total, available = memory()
    gpus, driver = _nvml() if any(Path(device).exists() for device in DEVICES) else ((), "")
    _, free = _space(Path(cache), *Path(cache).parents)
    shared, _ = _space(Path("/dev/shm"))  # noqa: S108 - not a file of ours
    state, processes = (heat.said(query) if gpus else "" for query in (heat.QUERY, holders.QUERY))
    network, kernel = networks.read(), os.uname().release
    return Readings(gpus, driver, total, available, free, shared, state, network, kernel, processes)


def _recorded(path: str) -> Readings:
    try:
        values: dict[str, Any] = json.loads(Path(path).read_text("utf-8"))
        values.pop("about", None)
        gpus = tuple(Gpu(**gpu) for gpu in values.pop("gpus", ()))
        found = Readings(gpus=gpus, network=networks.recorded(values.pop("network", {})), **values)
        _refuse_other_types(found)
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        what = f"The recorded readings cannot be used: {error}."
        remedy = "Correct the file, or leave FACTORY_READINGS out."
        allowed = "a JSON file with gpus, driver, memory_total, memory_available, disk_free"
        raise StartError("bad-value", what, "FACTORY_READINGS", path, allowed, remedy=remedy) from None
    return found


def _refuse_other_types(found: Readings) -> None:
    bytes_of = [(gpu.total, gpu.free) for gpu in found.gpus]
    bytes_of += [(found.memory_total, found.memory_available), (found.disk_free, found.shared_memory)]
    texts = [text for gpu in found.gpus for text in (gpu.name, gpu.capability)]
    if not all(isinstance(text, str) for text in (found.driver, found.state, *texts)):
        raise TypeError("a text is none")
    if not all(size is None or (isinstance(size, int) and size in SIZES) for sizes in bytes_of for size in sizes):
        raise TypeError("a number of bytes is none")


def memory() -> tuple[int | None, int | None]:
    """Return the host's total memory, and how much is available within the container's limit."""
    found: dict[str, str] = {}
    with suppress(OSError, ValueError):
        found = dict(re.findall(r"^(\w+): +(\d+) kB", Path(MEMINFO).read_text("ascii"), re.MULTILINE))
    total, available = (int(found[name]) * _KIB if name in found else None for name in ("MemTotal", "MemAvailable"))
    limit, used = _number("memory.max"), _number("memory.current")
    if limit is not None and available is not None:
        with suppress(OSError):  # pages of files, which the kernel takes back
            about = Path(CGROUP, "memory.stat").read_text("ascii")
            used = (used or 0) - sum(map(int, re.findall(r"^(?:in)?active_file (\d+)", about, re.MULTILINE)))
        available = min(available, max(0, limit - (used or 0)))
    return total, available


def _number(name: str) -> int | None:
    try:
        return int(Path(CGROUP, name).read_text("ascii"))
    except (OSError, ValueError):  # "max" means no limit
        return None


def _space(*places: Path) -> tuple[int, int] | tuple[None, None]:
    """Return the size and the free space of the first place that exists."""
    for place in places:
        with suppress(OSError):
            found = os.statvfs(place)
            return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return None, None


def _nvml() -> tuple[tuple[Gpu, ...], str]:
    """Ask NVML; a library or GPU that does not respond counts as absent."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return (), ""
    if nvml.nvmlInit_v2() != 0:
        return (), ""
    text = ctypes.create_string_buffer(96)
    driver = text.value.decode() if nvml.nvmlSystemGetDriverVersion(text, 96) == 0 else ""
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    gpus = []
    for index in range(count.value):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
            continue
        name = text.value.decode() if nvml.nvmlDeviceGetName(device, text, 96) == 0 else "unknown GPU"
        major, minor = ctypes.c_int(), ctypes.c_int()
        nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
        # total, free, used; "not supported" on GB10, which has no memory of its own.
        memory = (ctypes.c_ulonglong * 3)()
        own = nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0 and memory[0] > 0
        total, free = (int(memory[0]), int(memory[1])) if own else (None, None)
        gpus.append(Gpu(name, f"{major.value}.{minor.value}", total, free))
    nvml.nvmlShutdown()
    return tuple(gpus), driver
