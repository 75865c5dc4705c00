"""Compiles beside a start what the server would otherwise compile when it first calls it: modules of FlashInfer.

The companion starts one process for it, which runs compile_ahead.py with the server's own packages, at the lowest
priority. Both sides take FlashInfer's lock of a module, so the server waits for one that is being compiled, and
compiles itself what could not be compiled here.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import image, private_files

SCRIPT = str(Path(__file__).absolute().parents[1] / "compile_ahead.py")
JOB_MEMORY = 4_000_000_000
"""Bytes for one compiler; few objects take more, and those end by the floor."""
FLOOR = 2_000_000_000
"""Bytes of memory that must stay available while compilers run, at least."""
COMPILING = 3.0
"""The multiple of MEMORY_FLOOR below which compiling beside the server ends."""
SPARE_CORES = 2
SAMPLING = "sampling"
"""The module that a sampled request calls. Others are called while the server loads, which waits for them itself."""


DRIVER_PLACES = ("/usr/local/nvidia/lib64", "/usr/lib/wsl/lib")
LINKER_PLACES = ("/usr/local/cuda/lib64", "/usr/local/cuda/lib64/stubs", "/usr/lib")


class Kernels(NamedTuple):
    """Where the modules are that a model calls."""

    in_image: tuple[str, ...]
    in_volume: tuple[str, ...]
    missing: dict[str, str]
    """What makes each: a module of FlashInfer's and a function in it."""

    def outcome(self, after: "Kernels") -> str:
        """Say what happened to each module, from where they were before a start and after it."""
        compiled = [name for name in self.missing if name not in after.missing]
        places: dict[str, Iterable[str]] = {"in the image": self.in_image, "from the volume": self.in_volume}
        places |= {"compiled": compiled, "absent": after.missing}
        return "; ".join(f"{', '.join(names)} {place}" for place, names in places.items() if names)


def linker_path(environment: Mapping[str, str], root: str = "/") -> dict[str, str]:
    """Return the variable by which compilers find the driver where only the loader does, as on Kubernetes and WSL.

    Without it, what is compiled at run time is not linked, and the engine ends with its first sampled token.
    """
    top = Path(root)
    system = tuple(top.glob("usr/lib/*-linux-gnu"))
    linked = (*(top / place.lstrip("/") for place in LINKER_PLACES), *system)
    if any((folder / "libcuda.so").exists() for folder in linked):
        return {}
    given = (*environment.get("LD_LIBRARY_PATH", "").split(":"), *DRIVER_PLACES)
    loaded = (*(top / place.lstrip("/") for place in given if place), *system)
    driver = next((path for folder in loaded if (path := folder / "libcuda.so.1").exists()), None)
    if driver is None:
        return {}
    try:
        folder = str(Path(private_files.write("libcuda.so", f"INPUT({driver})\n")).parent)
    except OSError:
        return {}
    return {"LIBRARY_PATH": ":".join(filter(None, (folder, environment.get("LIBRARY_PATH", ""))))}


def find(facts: Mapping[str, Any], environment: Mapping[str, str], venv: str = "") -> Kernels:
    """Look for the modules that the image's model calls, without importing FlashInfer."""
    wanted: dict[str, str] = (facts.get("flashinfer") or {}).get("modules", {})
    packages = Path(venv or image.VENV).glob("lib/python3*/site-packages")
    site = next(iter(sorted(packages)), Path(venv))
    version = next((path.name.split("-")[1] for path in site.glob("flashinfer_python-*.dist-info")), "*")
    base = Path(environment.get("FLASHINFER_WORKSPACE_BASE") or environment.get("HOME") or "/root")
    volume = base / ".cache" / "flashinfer" / version.removesuffix(".dist")
    shipped = site / "flashinfer_jit_cache"
    in_image = tuple(name for name in wanted if any(shipped.glob(f"**/{name}/{name}.so")))
    rest = {name: make for name, make in wanted.items() if name not in in_image}
    kept = tuple(name for name in rest if any(volume.glob(f"*/cached_ops/{name}/{name}.so")))
    return Kernels(in_image, kept, {name: make for name, make in rest.items() if name not in kept})


def floor(kept: int) -> int:
    """Return the memory that must stay available while compilers run, where the host keeps so much."""
    return max(FLOOR, int(COMPILING * kept))


def jobs(cores: int, available: int | None, reserved: int) -> int:
    """Return how many compilers may run: none if the memory beside what the server will take is too small.

    `reserved` is what the server will take, and the floor.
    """
    if available is None:
        return 1
    return max(0, min(max(1, cores - SPARE_CORES), (available - reserved) // JOB_MEMORY))


def begin(missing: Mapping[str, str], count: int, least: int) -> int:
    """Start compiling in a process that ends with this one; return its number."""
    parent = os.getpid()
    if process := os.fork():
        return process
    try:
        os.setsid()  # the script ends what is in its session
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() == parent:
            os.nice(19)
            # If memory runs out after all, the kernel takes a compiler and not the server.
            Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
            job = json.dumps({"modules": dict(missing), "jobs": count, "floor": least})
            python = f"{image.VENV}/bin/python"
            os.execv(python, [python, "-I", SCRIPT, job])  # noqa: S606 - the image's own program
    except OSError as error:
        sys.stderr.write(f"[serve] kernels are compiled at first use: {error}\n")
    os._exit(1)


def runs(process: int) -> bool:
    """Whether the process that compiles has not ended yet."""
    try:
        return os.waitpid(process, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False
