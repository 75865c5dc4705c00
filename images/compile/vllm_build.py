"""Compiles vLLM inside the toolchain container: its whole wheel, or targets or single objects of its CMake.

Run by `./inv compile` with a JSON job as the only argument. All paths are fixed, so that every machine compiles
the same text; the build tree is kept between runs, so that ninja resumes where it was stopped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from driver_stub import make_stub

SOURCE = Path("/factory/src/vllm")
BUILD = Path("/factory/build")
OUT = Path("/factory/out")
UNKNOWN_TARGET = 3
LINKER = "-Wl,--build-id=none,-s"
LAUNCHER = Path(__file__).with_name("seeded")


def main() -> None:
    """Run the job that the argument describes."""
    job = json.loads(sys.argv[1])
    stubs = make_stub(BUILD / "stubs")
    os.environ.update(
        {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_LIBRARY_PATH": str(stubs),
            "FETCHCONTENT_BASE_DIR": str(BUILD / "deps"),
            "LIBRARY_PATH": str(stubs),
            "MAX_JOBS": str(job["jobs"]),
            "NVCC_THREADS": "1",
            "VLLM_TARGET_DEVICE": "cuda",
            "VLLM_VERSION_OVERRIDE": job["version"],
        }
    )
    if job["targets"]:
        build_targets(job["targets"], job["jobs"], settings(job["options"]))
    else:
        build_wheel(settings(job["options"]))


def build_wheel(options: list[str]) -> None:
    """Build the wheel as vLLM's own releases do."""
    os.environ["CMAKE_ARGS"] = " ".join(options)
    command = [sys.executable, "setup.py", "bdist_wheel", "--dist-dir", str(OUT), "--py-limited-api", "cp38"]
    subprocess.run(command, cwd=SOURCE, check=True)  # noqa: S603 - our own words


def build_targets(targets: list[str], jobs: int, options: list[str]) -> None:
    """Configure as setup.py would, and build only the given targets, or of TARGET/PATTERN the objects that match."""
    tree = BUILD / "cmake"
    configure = [
        "cmake", "-S", str(SOURCE), "-B", str(tree), "-G", "Ninja",
        "-DCMAKE_BUILD_TYPE=Release", "-DVLLM_TARGET_DEVICE=cuda", "-DNVCC_THREADS=1",
        f"-DVLLM_PYTHON_EXECUTABLE={sys.executable}", f"-DVLLM_PYTHON_PATH={':'.join(sys.path)}",
        f"-DFETCHCONTENT_BASE_DIR={BUILD / 'deps'}", "-DCMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc",
        *options,
    ]  # fmt: skip
    subprocess.run(configure, check=True)  # noqa: S603 - our own words
    known, objects = known_targets(tree)
    chosen = {name: matching(name, objects) if "/" in name else [name] for name in targets}
    unknown = [name for name, found in chosen.items() if not found or name.partition("/")[0] not in known]
    if unknown:
        print(f"FACTORY-UNKNOWN {json.dumps({'unknown': unknown, 'known': known})}", flush=True)
        raise SystemExit(UNKNOWN_TARGET)
    steps = [step for found in chosen.values() for step in found]
    build = ["ninja", "-C", str(tree), "-j", str(jobs), *steps]
    subprocess.run(build, check=True)  # noqa: S603 - our own words
    for name, found in chosen.items():
        made = [tree / step for step in found] if "/" in name else sorted(tree.rglob(f"{name}*.so"))
        for file in made:
            shutil.copy2(file, OUT / file.name)


def settings(options: list[str]) -> list[str]:
    """Return what CMake is told beyond what setup.py says: where sources are, how to call compilers, and how to link.

    Links have no build ids, which differ each time, and no symbol tables, which name the compiler's temporary files.
    """
    launchers = [f"-DCMAKE_{language}_COMPILER_LAUNCHER={LAUNCHER}" for language in ("C", "CXX", "CUDA")]
    return [*options, *launchers, *(f"-DCMAKE_{kind}_LINKER_FLAGS={LINKER}" for kind in ("MODULE", "SHARED"))]


def known_targets(tree: Path) -> tuple[list[str], list[str]]:
    """Return CMake's targets, without ninja's own files, and the objects of all targets."""
    command = ["ninja", "-C", str(tree), "-t", "targets", "all"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    steps = dict(line.rpartition(": ")[::2] for line in listed.splitlines())
    names = sorted(name for name, rule in steps.items() if rule == "phony" and not re.search(r"[/.]", name))
    return names, sorted(name for name in steps if name.endswith(".o"))


def matching(wanted: str, objects: list[str]) -> list[str]:
    """Return the objects that TARGET/PATTERN names: those of the target whose file names match."""
    target, _, pattern = wanted.partition("/")
    return [name for name in objects if f"/{target}.dir/" in name and fnmatchcase(Path(name).name, pattern)]


if __name__ == "__main__":
    main()
