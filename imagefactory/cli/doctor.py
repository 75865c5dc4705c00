"""Checks this machine for everything that commands rely on, and suggests a remedy for whatever is wrong."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, Literal

from imagefactory.environment.setup import RUN, SETS, STAMPS, is_current
from imagefactory.errors import FactoryError
from imagefactory.lock.mirrors import DebianMirrors, fetch
from imagefactory.offline.unpack import COMMIT
from imagefactory.plan.serve.description import DRIVER
from imagefactory.project.bases import Base
from imagefactory.project.project import Project
from imagefactory.serve_program import heat, holders, hosts, network
from imagefactory.store.index_config import IndexConfig, redact
from imagefactory.store.indexes import Indexes

Health = Literal["ok", "warning", "failed"]
PATIENCE = 20  # seconds to wait for a program to print its version
NEEDED_DISK = 7_000_000_000  # the downloads and layers of one full-size image; a test adds them up
UNPACKED = 10_000_000_000  # what the largest takes in Docker
BUILD: Final = "build"
TEST_PROGRAMS: Final = ("git", "docker-registry", "skopeo", "podman", "umoci", "shellcheck", "chromium")
"""Programs that tests use besides Docker, named like their Debian packages; tests that lack theirs are skipped."""
CDI: Final = ("/etc/cdi", "/var/run/cdi")  # where the Container Device Interface keeps descriptions of devices
DRIVER_AND_NAME: Final = ("--query-gpu=driver_version,name", "--format=csv,noheader")
DOCKER_VERSION: Final = ("version", "--format", "{{.Server.Version}}")
Result = tuple[Health, str, str]  # the health, the details, and what to do about it


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check, and the commands that depend on it."""

    subject: str
    needed_by: str
    health: Health
    detail: str
    remedy: str = ""


def examine(project: Project, today: date) -> Iterator[Diagnosis]:
    root, cache, bases = project.root, project.store.root, project.matrix.bases.values()
    yield Diagnosis("system", BUILD, *_system())
    yield Diagnosis("environment", BUILD, *_environment(root))
    yield Diagnosis("uv", "lock", *_uv())
    if (root / COMMIT).exists():
        yield Diagnosis("network", BUILD, "ok", "not needed: `./inv offline` packed this checkout with its images")
    else:
        yield Diagnosis("package index", BUILD, *_index())
        for base in bases:
            yield Diagnosis(f"Debian mirror ({base.debian})", BUILD, *_mirror(base.debian))
    for base in bases:
        yield Diagnosis(f"Debian support ({base.debian})", "publish", *_support(base, today))
    yield Diagnosis("cache", BUILD, *_cache(cache))
    yield Diagnosis("free disk", BUILD, *_disk(cache))
    yield Diagnosis("checkout", BUILD, *_checkout(root))
    yield Diagnosis("container engine", "run, smoke, compile", *_engine())
    yield Diagnosis("buildx", "build --engine docker", *_buildx())
    yield Diagnosis("GPU", "run", *_gpu())
    yield Diagnosis("container toolkit", "run", *_toolkit())
    for result in _host():
        yield Diagnosis("host", "run", *result)
    yield Diagnosis("test programs", "test", *_test_programs())


def _system() -> Result:
    machine = platform.machine()
    detail = f"{platform.system()} on {machine}, Python {platform.python_version()} ({sys.executable})"
    if sys.platform != "linux":
        return "warning", detail, "Only Linux is tested, and images run only on Linux."
    if machine not in {"aarch64", "x86_64"}:
        return "warning", detail, "Only aarch64 and x86_64 are tested: packages may have no wheels here."
    return "ok", detail, ""


def _environment(root: Path) -> Result:
    prefix = Path(sys.prefix)
    if not (prefix / STAMPS).is_dir():
        return "warning", f"{prefix} was not made by ./inv", "Use ./inv, which installs what is locked."
    if not is_current(root, prefix, {RUN}):
        return "failed", f"{prefix} is out of date", "Run ./inv instead of invoke."
    return "ok", f"as locked ({', '.join(name for name in SETS if is_current(root, prefix, {name}))})", ""


def _uv() -> Result:
    try:
        from uv import find_uv_bin

        return "ok", _output(find_uv_bin(), "--version"), ""
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        return "failed", str(error), "Remove .venv and run ./inv again."


def _index() -> Result:
    config = IndexConfig.from_environment()
    try:
        if Indexes(config).files("vllm"):
            return "ok", config.describe(), ""
    except FactoryError as error:
        return "failed", f"{error.where}: {error.why}", error.fix
    return "failed", f"{config.describe()} has no vllm", "Point PIP_INDEX_URL or UV_INDEX_URL at a complete index."


def _mirror(debian: str) -> Result:
    remedy = "Set FACTORY_DEBIAN_MIRROR to a Debian mirror near you."
    try:
        mirrors = DebianMirrors.discover(debian)
        if not mirrors.main:
            return "warning", "none configured; the snapshot archive is used, which is slow", remedy
        for root in mirrors.main:
            if fetch(root, f"dists/{debian}/InRelease") is None:
                return "failed", f"{redact(root)} has no {debian}", remedy
    except FactoryError as error:
        return "failed", f"{redact(error.where)}: {error.why}", remedy
    return "ok", ", ".join(map(redact, mirrors.main)), ""


def _support(base: Base, today: date) -> Result:
    if warning := base.support_warning(today):
        return "warning", warning, "Move its archs to a newer Debian (`bases` in matrix.yaml)."
    if base.supported_until is None:
        remedy = f"Give {base.debian} a date in matrix.yaml (`supported_until`)."
        return "warning", "matrix.yaml does not say until when", remedy
    return "ok", f"until {base.supported_until}", ""


def _cache(root: Path) -> Result:
    folder = _nearest_existing(root)
    if folder.is_dir() and os.access(folder, os.W_OK):
        return "ok", str(root), ""
    return "failed", f"{root} is not a writable folder", "Set FACTORY_CACHE to a folder that you can write to."


def _disk(root: Path) -> Result:
    free = shutil.disk_usage(_nearest_existing(root)).free
    building, loading = (f"{size / 1e9:.0f} GB" for size in (NEEDED_DISK, UNPACKED))
    detail = f"{free / 1e9:.0f} GB free; to build a full-size image takes {building}, Docker up to {loading} more"
    if free >= NEEDED_DISK:
        return "ok", detail, ""
    return "warning", detail, "Free some space, or set FACTORY_CACHE to a folder on a larger disk."


def _checkout(root: Path) -> Result:
    """Check that build/ and locks/ can be written: images go into one, records of new layers into the other."""
    for path in (root, root / "locks"):
        if not os.access(path, os.W_OK):
            return "failed", f"{path} cannot be written", "Clone the repository into a folder that you own."
    return "ok", str(root), ""


def _engine() -> Result:
    """Check the Docker daemon, which is needed to run images and to compile but not to build images."""
    remedy = "Building does not need it. To run images, install Docker and start the daemon."
    if shutil.which("docker") is None:
        return "warning", "no docker on PATH", remedy
    if version := _said_by("docker", *DOCKER_VERSION):
        return "ok", f"Docker {version}", ""
    return "warning", "the Docker daemon does not answer", remedy


def _buildx() -> Result:
    docker = shutil.which("docker")
    if docker is None:
        return "ok", "not needed without Docker", ""
    if version := printed_by(docker, "buildx", "version"):
        return "ok", version, ""
    remedy = (
        "`build` does without. Debian 13, Ubuntu: apt-get install docker-buildx; else Docker's docker-buildx-plugin."
    )
    return "warning", "Docker has no buildx", remedy


def _gpu() -> Result:
    """Look for a GPU that is neither slowed down nor stuck, and compare its driver with what images need."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        remedy = "Building does not need it. Where images with a GPU are to run, install NVIDIA's driver."
        return "warning", "no nvidia-smi on PATH", remedy
    lines = _said_by("nvidia-smi", *DRIVER_AND_NAME).splitlines()
    if not lines:
        return "warning", "nvidia-smi shows no GPU", "Check the driver: run nvidia-smi, and look into `dmesg`."
    driver, _, _ = lines[0].partition(", ")
    names = ", ".join(line.partition(", ")[2] for line in lines)
    state = printed_by(smi, *heat.QUERY)
    held = holders.describe(printed_by(smi, *holders.QUERY))
    parts = [names, heat.describe(state), held, f"driver {driver}; images need {DRIVER} or newer"]
    detail = ", ".join(filter(None, parts))
    major = re.match(r"\d+", driver)
    if major and int(major[0]) < int(DRIVER.partition(".")[0]):
        return "warning", detail, "Update NVIDIA's driver on this machine; containers use the host's."
    for what, remedy in heat.problems(state):
        return "warning", f"{what}; {detail}", remedy
    return "ok", detail, ""


def _toolkit() -> Result:
    """Look for what lets Docker hand GPUs to containers: a runtime, or descriptions of devices (CDI)."""
    if shutil.which("nvidia-smi") is None:
        return "ok", "not needed without a GPU", ""
    described = _described()
    runtimes = _said_by("docker", "info", "--format", "{{json .Runtimes}}")
    if "nvidia" in runtimes or described:
        return "ok", "Docker has the runtime nvidia" if "nvidia" in runtimes else str(described[0]), ""
    configure = "`sudo nvidia-ctk runtime configure --runtime=docker`"
    remedy = f"Run {configure}, and restart Docker."
    if shutil.which("nvidia-ctk") is None:
        remedy = f"Install nvidia-container-toolkit, and run {configure}."
    return "warning", 'Docker cannot hand on GPUs ("could not select device driver")', remedy


def _described() -> list[Path]:
    return [path for folder in CDI for path in Path(folder).glob("*nvidia*")]


def _host() -> list[Result]:
    """Compare this machine with the hosts of known faults; it sees Docker and its toolkit, which no container does."""
    driver, _, name = _said_by("nvidia-smi", *DRIVER_AND_NAME).partition(", ")
    toolkit = re.search(r"version (\d[\d.]*)", _said_by("nvidia-ctk", "--version"))
    versions = {
        "kernel": platform.release(),
        "driver": driver,
        "toolkit": toolkit[1] if toolkit else "",
        "docker": _said_by("docker", *DOCKER_VERSION),
    }
    roce = any(device.active for device in network.read().roce)
    facts = {**versions, "unified": "GB10" in name, "roce": roce, "cdi": bool(_described())}
    found: list[Result] = [
        ("warning", f"{fault.detail} ({fault.source})", fault.remedy) for fault in hosts.faults(facts)
    ]
    shown = ", ".join(f"{part} {version}" for part, version in versions.items() if version)
    return found or [("ok", f"{shown}: no known fault", "")]


def _test_programs() -> Result:
    missing = [program for program in TEST_PROGRAMS if shutil.which(program) is None]
    if not missing:
        return "ok", ", ".join(TEST_PROGRAMS), ""
    remedy = f"Tests that need them are skipped. Debian, Ubuntu: apt-get install {' '.join(missing)}"
    return "warning", f"missing: {', '.join(missing)}", remedy


def _said_by(name: str, *words: str) -> str:
    """Return what a program on PATH prints; nothing if it is missing or fails."""
    program = shutil.which(name)
    return printed_by(program, *words) if program else ""


def printed_by(*command: str) -> str:
    """Return what a program prints; nothing if it is missing or fails."""
    with suppress(OSError, subprocess.SubprocessError):
        return _output(*command)
    return ""


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)  # noqa: S603
    return done.stdout.strip()


def _nearest_existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())
