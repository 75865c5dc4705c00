"""Locks the factory's own environment: uv resolves versions, the index provides the wheels for every platform."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from packaging.markers import Environment, Marker
from packaging.tags import Tag, mac_platforms

from imagefactory.environment.index_config import IndexConfig, environment_for_uv, options_for_uv, redact
from imagefactory.environment.progress import Say
from imagefactory.environment.sets import PYTHONS, SETS, LockedSet, checksum, requirements
from imagefactory.errors.locks import IncompatibleWheelError, LockDriftError, ResolutionError
from imagefactory.resolve.wheel_locks import PARALLEL, manylinux, wheel_tags, wheels_of
from imagefactory.store.atomic import write_text
from imagefactory.store.indexes import Indexes, WheelLocation

GLIBC: Final = 31
"""Minor version of the oldest supported glibc: Debian 11 and Ubuntu 20.04 have 2.31."""
NEWEST_GLIBC: Final = 50
"""Wheels for newer glibc versions are locked too, because installers prefer them where they run."""
MACHINES: Final = ("aarch64", "x86_64")
_HEAD: Final = """\
# The factory's own environment, for {purpose}. Written by `./inv lock --environment`; do not edit.
# made from: {checksum}
--only-binary :all:
"""


@dataclass(frozen=True)
class OwnPin:
    """A version that uv chose, and the marker that says where it applies."""

    name: str
    version: str
    marker: str

    def applies(self, environment: Mapping[str, str]) -> bool:
        """Whether this package is installed in an environment."""
        return not self.marker or Marker(self.marker).evaluate(dict(environment))

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")


@dataclass(frozen=True)
class Host:
    """A Python version and platform that the factory can be installed on."""

    python: str
    machine: str
    system: str = "linux"
    patch: int = 0

    def __str__(self) -> str:
        return f"Python {self.python} on {self.system} {self.machine}"

    @property
    def markers(self) -> Mapping[str, str]:
        """The values that requirement markers are evaluated with."""
        linux = self.system == "linux"
        return Environment(
            implementation_name="cpython",
            implementation_version=f"{self.python}.{self.patch}",
            os_name="posix",
            platform_machine=self.machine,
            platform_release="",
            platform_system="Linux" if linux else "Darwin",
            platform_version="",
            platform_python_implementation="CPython",
            python_full_version=f"{self.python}.{self.patch}",
            python_version=self.python,
            sys_platform=self.system,
        )  # type: ignore[return-value]

    def tags(self, glibc: int = GLIBC) -> frozenset[Tag]:
        """Return the wheel tags that run on this host with a glibc of this minor version."""
        mac = self.system == "darwin"
        platforms = mac_platforms((14, 0), self.machine) if mac else manylinux(self.machine, glibc)
        return frozenset(wheel_tags(self.python, list(platforms)))


SUPPORTED: Final = tuple(
    Host(python, machine, patch=patch)
    for python, machine in product(PYTHONS, MACHINES)
    for patch in (0, 99)  # markers may tell the first releases of a Python from later ones
)
WELCOME: Final = tuple(Host(python, "arm64", "darwin") for python in PYTHONS)
"""Hosts whose wheels are locked where they exist, without any promise of support."""


def lock_environment(root: Path, say: Say, *, upgrade: bool = False) -> list[tuple[Path, bool]]:
    """Lock every set, keeping the locked versions unless told to upgrade; return each path and whether it changed."""
    old = LockedSet.of(root, "test")
    kept = list(read_pins(old.text())) if old.path.exists() and not upgrade else []
    # `test` includes nearly everything, so its versions apply to the other sets as well.
    decided = _resolve(requirements(root, "test"), kept)
    pins = {name: _resolve(requirements(root, name), decided) for name in SETS}
    indexes = Indexes(IndexConfig.from_environment())
    every = list(dict.fromkeys(pin for found in pins.values() for pin in found))
    say(f"{len(every)} packages; looking up their wheels")
    with ThreadPoolExecutor(PARALLEL) as pool:
        wheels = dict(zip(every, pool.map(lambda pin: _wheels(pin, indexes), every), strict=True))
    written = []
    for name in SETS:
        text = _text(root, name, pins[name], wheels)
        path = LockedSet.of(root, name).path
        changed = not path.exists() or path.read_text("utf-8") != text
        if changed:
            write_text(path, text)
        written.append((path, changed))
    return written


def check_environment(root: Path) -> int:
    """Check that every locked set matches pyproject.toml; return how many there are."""
    for name in SETS:
        locked = LockedSet.of(root, name)
        if not locked.path.exists() or locked.made_from() != checksum(root, name):
            raise LockDriftError(
                "The lock of the factory's own environment does not match pyproject.toml.",
                where=locked.path,
                why="The requirements in pyproject.toml changed after the lock was made.",
                fix="Run `./inv lock --environment` and commit the files it writes.",
            )
    return len(SETS)


def read_pins(text: str) -> Iterator[OwnPin]:
    """Parse `name==version ; marker` lines, with or without hashes after them."""
    for line in text.splitlines():
        found = re.match(r"([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)(?:\s*;\s*([^\\]*?))?\s*\\?$", line)
        if found:
            yield OwnPin(found[1], found[2], found[3] or "")


def _resolve(wanted: Sequence[str], preferred: Iterable[OwnPin]) -> list[OwnPin]:
    """Let uv resolve versions for all platforms; it changes the preferred ones only where it must."""
    from uv import find_uv_bin  # noqa: PLC0415 - only locking needs it

    with tempfile.TemporaryDirectory() as folder:
        asked, pins = Path(folder, "in.txt"), Path(folder, "pins.txt")
        asked.write_text("".join(f"{line}\n" for line in wanted), "utf-8")
        pins.write_text("".join(f"{pin}\n" for pin in preferred), "utf-8")
        command = [
            find_uv_bin(), "pip", "compile", str(asked), "--output-file", str(pins), "--universal",
            "--python-version", PYTHONS[0], "--only-binary", ":all:", "--no-header", "--no-annotate",
            "--index-strategy", "unsafe-best-match", "--color", "never", "--quiet", *options_for_uv(),
        ]  # fmt: skip
        done = subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, check=False, env=environment_for_uv()
        )
        if done.returncode:
            raise ResolutionError(
                "The factory's own environment cannot be resolved.",
                where="pyproject.toml",
                why=redact(" ".join(done.stderr.split())),
                fix="Change the requirements in pyproject.toml, or point PIP_INDEX_URL or UV_INDEX_URL at an index "
                "that has them.",
            )
        return list(filter(None, map(_for_our_hosts, read_pins(pins.read_text("utf-8")))))


def _for_our_hosts(pin: OwnPin) -> OwnPin | None:
    """Drop a pin that none of our hosts needs, and a marker that is true on all of them."""
    applies = [pin.applies(host.markers) for host in (*SUPPORTED, *WELCOME)]
    if not any(applies):
        return None
    return OwnPin(pin.name, pin.version, "") if all(applies) else pin


def _wheels(pin: OwnPin, indexes: Indexes) -> list[WheelLocation]:
    """Collect the wheels of a version that install on any of our hosts; every supported host must have one."""
    found = wheels_of(pin.name, pin.version, indexes.files(pin.name))
    offered = [(location, file_tags) for location, _, file_tags in found if location.sha256]
    useful: dict[str, WheelLocation] = {}
    for host in (*SUPPORTED, *WELCOME):
        if not pin.applies(host.markers):
            continue
        tags = host.tags()
        fitting = [location for location, file_tags in offered if tags & file_tags]
        if not fitting and host in SUPPORTED:
            raise IncompatibleWheelError(
                f"{pin.name} {pin.version} has no wheel for {host}.",
                where="pyproject.toml",
                why="The factory installs nothing that has to be compiled or downloaded from elsewhere first. "
                f"Offered: {', '.join(location.file for location, _ in offered) or 'nothing'}.",
                fix="Require another version in pyproject.toml, or another package.",
            )
        newer = host.tags(NEWEST_GLIBC)
        for location, file_tags in offered:
            if newer & file_tags:
                useful.setdefault(location.file, location)
    return [useful[file] for file in sorted(useful)]


def _text(
    root: Path, name: str, pins: Sequence[OwnPin], wheels: Mapping[OwnPin, Sequence[WheelLocation]]
) -> str:
    parts = [_HEAD.format(purpose=SETS[name], checksum=checksum(root, name))]
    by_version = {(pin.name, pin.version): found for pin, found in wheels.items()}
    for pin in pins:
        found = by_version[pin.name, pin.version]
        named = "".join(f"# {wheel.file}\n" for wheel in found)
        hashes = " \\\n".join(f"    --hash=sha256:{wheel.sha256}" for wheel in found)
        parts.append(f"{named}{pin} \\\n{hashes}\n")
    return "\n".join(parts)
