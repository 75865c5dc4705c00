"""Check this machine for everything that commands rely on, and suggest a remedy for whatever is wrong."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from imagefactory.environment.index_config import IndexConfig, redact
from imagefactory.environment.sets import RUN, SETS
from imagefactory.environment.setup import STAMPS, is_current
from imagefactory.errors import FactoryError
from imagefactory.locks.project import Project
from imagefactory.resolve.mirrors import DebianMirrors, fetch
from imagefactory.store.cache import Store
from imagefactory.store.indexes import Indexes

Health = Literal["ok", "warning", "failed"]
PATIENCE = 20
"""Seconds to wait for a program to print its version."""
NEEDED_DISK = 20_000_000_000
"""Downloads and blobs of one full-size image, with room to spare."""
BUILD: Final = "build"
TEST: Final = "test"
RUN_IMAGES: Final = "run, smoke, compile"
TEST_PROGRAMS: Final = {
    "git": "git",
    "docker-registry": "docker-registry",
    "skopeo": "skopeo",
    "podman": "podman",
    "umoci": "umoci",
    "shellcheck": "shellcheck",
}
"""Programs that tests use besides Docker, each with its Debian package; tests that lack theirs are skipped."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check, and the commands that depend on it."""

    subject: str
    needed_by: str
    health: Health
    detail: str
    remedy: str = ""


def examine(project: Project) -> Iterator[Diagnosis]:
    """Run all checks, one after the other."""
    yield _system()
    yield _environment(project.root)
    yield _uv()
    yield _index()
    for base in project.matrix.bases.values():
        yield _mirror(base.debian)
    yield from _store(project.store)
    yield _checkout(project.root)
    yield _engine()
    yield _test_programs()


def _system() -> Diagnosis:
    version = ".".join(map(str, sys.version_info[:3]))
    machine = platform.machine()
    detail = f"{platform.system()} on {machine}, Python {version} ({sys.executable})"
    if sys.platform != "linux":
        return Diagnosis(
            "system", BUILD, "warning", detail, "Only Linux is tested, and images run only on Linux."
        )
    if machine not in {"aarch64", "x86_64"}:
        remedy = "Only aarch64 and x86_64 are tested: the factory's own packages may have no wheels here."
        return Diagnosis("system", BUILD, "warning", detail, remedy)
    return Diagnosis("system", BUILD, "ok", detail)


def _environment(root: Path) -> Diagnosis:
    """Compare what is installed with locks/environment/."""
    prefix = Path(sys.prefix)
    if not (prefix / STAMPS).is_dir():
        detail = f"{prefix} was not made by ./inv; its packages are not checked"
        return Diagnosis("environment", BUILD, "warning", detail, "Use ./inv, which installs what is locked.")
    if not is_current(root, prefix, {RUN}):
        return Diagnosis(
            "environment", BUILD, "failed", f"{prefix} is out of date", "Run ./inv instead of invoke."
        )
    there = [name for name in SETS if is_current(root, prefix, {name})]
    return Diagnosis("environment", BUILD, "ok", f"as locked ({', '.join(there)})")


def _uv() -> Diagnosis:
    remedy = "Reinstall the environment: remove .venv and run ./inv again."
    try:
        from uv import find_uv_bin  # noqa: PLC0415 - its absence is a finding, not a crash

        version = _output([find_uv_bin(), "--version"])
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        return Diagnosis("uv", "lock", "failed", str(error), remedy)
    return Diagnosis("uv", "lock", "ok", version)


def _engine() -> Diagnosis:
    """Check the Docker daemon, which is needed to run images and to compile but not to build images."""
    remedy = "Building does not need it. To run images, install Docker and start the daemon."
    docker = shutil.which("docker")
    if docker is None:
        return Diagnosis("container engine", RUN_IMAGES, "warning", "no docker on PATH", remedy)
    try:
        version = _output([docker, "version", "--format", "{{.Server.Version}}"])
    except (OSError, subprocess.SubprocessError):
        detail = "the Docker daemon does not answer"
        return Diagnosis("container engine", RUN_IMAGES, "warning", detail, remedy)
    return Diagnosis("container engine", RUN_IMAGES, "ok", f"Docker {version}")


def _test_programs() -> Diagnosis:
    missing = [package for program, package in TEST_PROGRAMS.items() if shutil.which(program) is None]
    if missing:
        remedy = f"Tests that need them are skipped. Debian, Ubuntu: apt-get install {' '.join(missing)}"
        return Diagnosis("test programs", TEST, "warning", f"missing: {', '.join(missing)}", remedy)
    return Diagnosis("test programs", TEST, "ok", ", ".join(TEST_PROGRAMS))


def _index() -> Diagnosis:
    config = IndexConfig.from_environment()
    try:
        files = Indexes(config).files("vllm")
    except FactoryError as error:
        return Diagnosis("package index", BUILD, "failed", f"{error.where}: {error.why}", error.fix)
    if not files:
        detail = f"{config.describe()} has no vllm"
        remedy = "Point PIP_INDEX_URL or UV_INDEX_URL at a complete index."
        return Diagnosis("package index", BUILD, "failed", detail, remedy)
    return Diagnosis("package index", BUILD, "ok", config.describe())


def _mirror(debian: str) -> Diagnosis:
    subject, remedy = f"Debian mirror ({debian})", "Set FACTORY_DEBIAN_MIRROR to a Debian mirror near you."
    try:
        mirrors = DebianMirrors.discover(debian)
        if not mirrors.main:
            detail = "none configured; the snapshot archive is used, which is slow"
            return Diagnosis(subject, BUILD, "warning", detail, remedy)
        for root in mirrors.main:
            if fetch(root, f"dists/{debian}/InRelease") is None:
                return Diagnosis(subject, BUILD, "failed", f"{redact(root)} has no {debian}", remedy)
    except FactoryError as error:
        return Diagnosis(subject, BUILD, "failed", f"{redact(error.where)}: {error.why}", remedy)
    return Diagnosis(subject, BUILD, "ok", ", ".join(map(redact, mirrors.main)))


def _store(store: Store) -> Iterator[Diagnosis]:
    folder = _nearest_existing(store.root)
    remedy = "Set FACTORY_CACHE to a folder that you can write to."
    if folder.is_dir() and os.access(folder, os.W_OK):
        yield Diagnosis("cache", BUILD, "ok", str(store.root))
    else:
        yield Diagnosis("cache", BUILD, "failed", f"{store.root} is not a writable folder", remedy)
    free = shutil.disk_usage(folder).free
    detail = f"{free / 1e9:.0f} GB free; a full-size image takes {NEEDED_DISK / 1e9:.0f} GB"
    if free >= NEEDED_DISK:
        yield Diagnosis("free disk", BUILD, "ok", detail)
    else:
        remedy = "Free some space, or set FACTORY_CACHE to a folder on a larger disk."
        yield Diagnosis("free disk", BUILD, "warning", detail, remedy)


def _checkout(root: Path) -> Diagnosis:
    """Check that build/ and locks/ can be written: images go into one, records of new layers into the other."""
    closed = [path for path in (root, root / "locks") if not os.access(path, os.W_OK)]
    if closed:
        remedy = "Clone the repository into a folder that you own, or build with --output elsewhere."
        return Diagnosis("checkout", BUILD, "failed", f"cannot be written: {closed[0]}", remedy)
    return Diagnosis("checkout", BUILD, "ok", str(root))


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)  # noqa: S603
    return done.stdout.strip()


def _nearest_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
