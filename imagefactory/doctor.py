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

from imagefactory.environment.indexes import IndexConfig, redact
from imagefactory.errors import FactoryError
from imagefactory.project import Project
from imagefactory.resolve.index import Indexes
from imagefactory.resolve.mirrors import DebianMirrors, fetch
from imagefactory.store import Store

Health = Literal["ok", "warning", "failed"]
PATIENCE = 20
"""Seconds that a program may take to say its version."""
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
    # An older one cannot even import this module; what is left to say is which one it is.
    return Finding("Python", "ok", f"{version} ({sys.executable})")


def _uv() -> Finding:
    remedy = "Reinstall the environment: remove .venv and run ./inv again."
    try:
        from uv import find_uv_bin  # noqa: PLC0415 - its absence is a finding, not a crash

        version = _output([find_uv_bin(), "--version"])
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        return Finding("uv", "failed", str(error), remedy)
    return Finding("uv", "ok", version)


def _engine() -> Finding:
    """Docker is needed to run images and to compile, not to assemble them."""
    remedy = "Only running and compiling need it: install Docker and start the daemon."
    docker = shutil.which("docker")
    if docker is None:
        return Finding("container engine", "warning", "no docker on PATH", remedy)
    try:
        version = _output([docker, "version", "--format", "{{.Server.Version}}"])
    except (OSError, subprocess.SubprocessError):
        return Finding("container engine", "warning", "the Docker daemon does not answer", remedy)
    return Finding("container engine", "ok", f"Docker {version}")


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
    subject, remedy = f"Debian mirror ({debian})", "Set FACTORY_DEBIAN_MIRROR to a Debian mirror near you."
    mirrors = DebianMirrors.discover(debian)
    if not mirrors.main:
        detail = "none configured; the snapshot archive is used, which is slow"
        return Finding(subject, "warning", detail, remedy)
    for root in mirrors.main:
        try:
            release = fetch(root, f"dists/{debian}/InRelease")
        except FactoryError as error:
            return Finding(subject, "failed", f"{redact(root)}: {error.why}", remedy)
        if release is None:
            return Finding(subject, "failed", f"{redact(root)} has no {debian}", remedy)
    return Finding(subject, "ok", ", ".join(map(redact, mirrors.main)))


def _store(store: Store) -> Iterator[Finding]:
    folder = _nearest_existing(store.root)
    if folder.is_dir() and os.access(folder, os.W_OK):
        yield Finding("cache", "ok", str(store.root))
    else:
        detail = f"{store.root} is not a writable folder"
        yield Finding("cache", "failed", detail, "Set FACTORY_CACHE to a folder of yours.")
    free = shutil.disk_usage(folder).free
    detail = f"{free / 1e9:.0f} GB free, a full-size image wants {NEEDED_DISK / 1e9:.0f} GB"
    if free >= NEEDED_DISK:
        yield Finding("free disk", "ok", detail)
    else:
        remedy = "Free some space, or set FACTORY_CACHE to a folder on a larger disk."
        yield Finding("free disk", "warning", detail, remedy)


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)  # noqa: S603
    return done.stdout.strip()


def _nearest_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
