"""Checks that a wheel is of the expected package, version and platform, and runs on a base."""

from __future__ import annotations

import email
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from zipfile import BadZipFile, ZipFile

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from imagefactory.errors import InputError
from imagefactory.project.bases import Base

MACHINES: Final = {"linux/arm64": ("aarch64", 183), "linux/amd64": ("x86_64", 62)}
"""The machine of each platform in wheel tags and in ELF headers (e_machine)."""
_ELF: Final = b"\x7fELF"
_E_MACHINE: Final = 18


def refuse_misfit(name: str, version: str, platform: str, wheel: Path) -> None:
    """Raise an error if a wheel is damaged, or of another package, version or platform."""
    try:
        found, its_version, _, tags = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        raise _wrong(wheel, f"{wheel.name} is not the name of a wheel.", str(error)) from None
    try:
        with ZipFile(wheel) as archive:
            broken = archive.testzip()
            metadata = _metadata(archive)
            foreign = sorted(_foreign(archive, platform))
    except (OSError, BadZipFile, ValueError, KeyError) as error:
        raise _wrong(wheel, f"{wheel.name} is not a whole wheel.", str(error)) from None
    if broken is not None:
        raise _wrong(wheel, f"{wheel.name} is not a whole wheel.", f"{broken} in it is damaged.")
    for its_name, number in ((found, str(its_version)), metadata):
        if canonicalize_name(its_name) != canonicalize_name(name) or not same_version(number, version):
            what = f"{wheel.name} is not {name} {version}."
            raise _wrong(wheel, what, f"It calls itself {its_name} {number}.")
    machine, _ = MACHINES[platform]
    if not any(tag.platform == "any" or tag.platform.endswith(f"_{machine}") for tag in tags):
        raise _wrong(wheel, f"{wheel.name} is not for {platform}.", f"No tag of its name is for {machine}.")
    if foreign:
        why = f"These libraries in it are for other machines: {', '.join(foreign[:3])}."
        raise _wrong(wheel, f"{wheel.name} is not for {platform}.", why)


def same_version(found: str, wanted: str) -> bool:
    """Compare versions; a local label (+cu130) matters only if the wanted version has one."""
    try:
        version, expected = Version(found), Version(wanted)
    except InvalidVersion:
        return False
    return version == expected if expected.local else version.public == expected.public


def why_unfit(system: Mapping[str, str], base: Base) -> str | None:
    """Return why code compiled for a system would not run on a base, or None if it does."""
    if not system.keys() >= {"python", "glibc", "cuda"}:
        return "it does not say which Python, glibc and CUDA it was compiled for"
    if system["python"] != base.python:
        return f"it is for Python {system['python']}, and the base has {base.python}"
    if Version(system["glibc"]) > Version(base.glibc):
        return f"it needs glibc {system['glibc']}, and the base has {base.glibc}"
    return None


def runs_with_cuda(compiled: str, runtime: str) -> bool:
    """Return whether code of a CUDA release runs with a runtime: one of the same major version that is not older."""
    needed, found = Version(compiled).release, Version(runtime).release
    return needed[0] == found[0] and needed <= found


def _metadata(archive: ZipFile) -> tuple[str, str]:
    file = next((name for name in archive.namelist() if name.endswith(".dist-info/METADATA")), None)
    if file is None:
        raise ValueError("It has no METADATA.")
    fields = email.message_from_bytes(archive.read(file))
    return str(fields["Name"]), str(fields["Version"])


def _foreign(archive: ZipFile, platform: str) -> Iterator[str]:
    """Yield the names of ELF files that were built for another machine."""
    _, expected = MACHINES[platform]
    for info in archive.infolist():
        with archive.open(info) as member:
            header = member.read(_E_MACHINE + 2)
        if header.startswith(_ELF) and struct.unpack_from("<H", header, _E_MACHINE)[0] != expected:
            yield info.filename


def _wrong(wheel: Path, what: str, why: str) -> InputError:
    return InputError(
        "wrong-wheel",
        what,
        where=wheel,
        why=why or "It cannot be read.",
        fix="Compile it again for the right package, version and platform; nothing was kept.",
    )
