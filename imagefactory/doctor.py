"""A look at the machine: everything the factory leans on, each with a remedy when it is not well."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from imagefactory.errors import FactoryError
from imagefactory.project import Project
from imagefactory.resolve.index import IndexConfig, Indexes
from imagefactory.resolve.mirrors import DebianMirrors
from imagefactory.store import Store

Health = Literal["ok", "warning", "failed"]
NEEDED_DISK = 20_000_000_000
"""Downloads and blobs of one full-size image, with room to breathe."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    health: Health
    detail: str
    remedy: str = ""


def examine(project: Project) -> Iterator[Finding]:
    """Look at everything, one after the other."""
    yield _python()
    yield _uv()
    yield _engine()
    yield _index()
    for base in project.matrix.bases.values():
        yield _mirror(base.debian)
    yield from _store(project.store)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= (3, 11):
        return Finding("Python", "ok", version)
    return Finding("Python", "failed", version, "Install Python 3.11 or newer.")


def _uv() -> Finding:
    from uv import find_uv_bin  # noqa: PLC0415 - its absence is a finding, not a crash

    try:
        done = subprocess.run([find_uv_bin(), "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        return Finding("uv", "failed", str(error), "Reinstall the environment: remove .venv and run ./inv again.")
    return Finding("uv", "ok", done.stdout.strip())


def _engine() -> Finding:
    """Docker is needed to run images and to compile, not to assemble them."""
    remedy = "Only running and compiling need it: install Docker and start the daemon."
    docker = shutil.which("docker")
    if docker is None:
        return Finding("container engine", "warning", "no docker on PATH", remedy)
    done = subprocess.run(  # noqa: S603 - a fixed command
        [docker, "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["the daemon does not answer"])[-1]
        return Finding("container engine", "warning", reason, remedy)
    return Finding("container engine", "ok", f"Docker {done.stdout.strip()}")


def _index() -> Finding:
    config = IndexConfig.from_environment()
    try:
        files = Indexes(config).files("vllm")
    except FactoryError as error:
        return Finding("package index", "failed", f"{error.where}: {error.why}", error.fix)
    if not files:
        return Finding(
            "package index",
            "failed",
            f"{config.describe()} has no vllm",
            "Point PIP_INDEX_URL or UV_INDEX_URL at a complete index.",
        )
    return Finding("package index", "ok", config.describe())


def _mirror(debian: str) -> Finding:
    mirrors = DebianMirrors.discover(debian)
    if mirrors.main:
        return Finding(f"Debian mirror ({debian})", "ok", ", ".join(mirrors.main))
    return Finding(
        f"Debian mirror ({debian})",
        "warning",
        "none configured; the snapshot archive is used, which is slow",
        "Set FACTORY_DEBIAN_MIRROR to a Debian mirror near you.",
    )


def _store(store: Store) -> Iterator[Finding]:
    folder = _nearest_existing(store.root)
    if os.access(folder, os.W_OK):
        yield Finding("cache", "ok", str(store.root))
    else:
        yield Finding("cache", "failed", f"{store.root} is not writable", "Set FACTORY_CACHE to a folder of yours.")
    free = shutil.disk_usage(folder).free
    detail = f"{free / 1e9:.0f} GB free, a full-size image wants {NEEDED_DISK / 1e9:.0f} GB"
    if free >= NEEDED_DISK:
        yield Finding("free disk", "ok", detail)
    else:
        yield Finding("free disk", "warning", detail, "Free some space, or set FACTORY_CACHE to a larger disk.")


def _nearest_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
