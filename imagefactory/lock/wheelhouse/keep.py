"""Keeps compiled wheels in the store, each under a key of its inputs, and checks what they are and fit."""

from __future__ import annotations

import email
import json
import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from zipfile import BadZipFile, ZipFile

from filelock import FileLock
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from pydantic import TypeAdapter

from imagefactory.errors import InputError
from imagefactory.project.bases import Base
from imagefactory.project.locks.files import Graft
from imagefactory.store.atomic import writing
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, checksum, file_sha256, parse_json, sha256_of

MACHINES: Final = {"linux/arm64": ("aarch64", 183), "linux/amd64": ("x86_64", 62)}
"""The machine of each platform in wheel tags and in ELF headers (e_machine)."""
_ELF: Final = b"\x7fELF"
_E_MACHINE: Final = 18  # its offset, behind e_ident (16 bytes) and e_type (2); both platforms are little-endian


def refuse_misfit(name: str, version: str, platform: str, wheel: Path) -> None:
    try:
        distribution, its_version, _, tags = parse_wheel_filename(wheel.name)
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
    for its_name, number in ((distribution, str(its_version)), metadata):
        if canonicalize_name(its_name) != canonicalize_name(name) or not same_version(number, version):
            what = f"{wheel.name} is not {name} {version}."
            raise _wrong(wheel, what, f"It calls itself {its_name} {number}.")
    machine, _ = MACHINES[platform]
    if not any(tag.platform == "any" or tag.platform.endswith(f"_{machine}") for tag in tags):
        raise _wrong(wheel, f"{wheel.name} is not for {platform}.", f"No tag of its name is for {machine}.")
    if foreign:
        why = f"These libraries in it are for other machines: {', '.join(foreign[:3])}."
        raise _wrong(wheel, f"{wheel.name} is not for {platform}.", why)


def same_version(offered: str, required: str) -> bool:
    """Compare versions; a local label (+cu130) matters only if the required version has one."""
    try:
        version, expected = Version(offered), Version(required)
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


def _metadata(archive: ZipFile) -> tuple[str, str]:
    file = next((name for name in archive.namelist() if name.endswith(".dist-info/METADATA")), None)
    if file is None:
        raise ValueError("It has no METADATA.")
    fields = email.message_from_bytes(archive.read(file))
    return str(fields["Name"]), str(fields["Version"])


def _foreign(archive: ZipFile, platform: str) -> Iterator[str]:
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
        fix="Compile it again for the right package, version and platform, and remove this one.",
    )


CompiledKind = Literal["whole", "graft"]
FORMAT: Final = 1  # part of every key: another number gives all wheels new keys
_RECORD = "inputs.json"


@dataclass(frozen=True, kw_only=True)
class CompileInputs:
    """Everything that determines the result of a compile."""

    name: str  # the distribution: vllm, flashinfer-jit-cache, ...
    version: str
    sources: Mapping[str, str]  # the commit or tree digest of every source, by name
    mods: tuple[str, ...] = ()  # the sha256 of every mod applied to the sources, in order
    toolchain: str  # the digest of the image with the compilers
    arch_list: str  # the GPU targets in the compiler's notation, such as 12.1a
    platform: str  # linux/arm64 or linux/amd64
    flags: tuple[str, ...] = ()
    kind: CompiledKind = "whole"
    system: Mapping[str, str] = field(default_factory=dict)
    """The Python, glibc and CUDA that the result is for; empty for libraries that no image gets."""

    @property
    def key(self) -> Sha256:
        """The key of the result; the order of the sources does not matter."""
        return checksum({"format": FORMAT, **self.as_json()})

    def as_json(self) -> dict[str, Any]:
        return {**_PARSER.dump_python(self, mode="json"), "name": canonicalize_name(self.name)}

    @classmethod
    def from_json(cls, data: object) -> CompileInputs:
        """Parse the result of `as_json`; raise ValueError for anything else."""
        return _PARSER.validate_python(data)


_PARSER: Final = TypeAdapter(CompileInputs)


@dataclass(frozen=True)
class CompiledWheel:
    """A wheel and what it was compiled from."""

    filename: str
    sha256: Sha256
    size: int
    inputs: CompileInputs

    @property
    def key(self) -> Sha256:
        return self.inputs.key


@dataclass(frozen=True)
class KeptWheel(CompiledWheel):
    """A compiled wheel in the store."""

    path: Path = field(compare=False)


def find(store: Store, key: str) -> KeptWheel | None:
    record = store.root / "wheelhouse" / key / _RECORD
    return _read(record) if record.exists() else None


def all_kept(store: Store) -> Iterator[KeptWheel]:
    wheels = map(_read, (store.root / "wheelhouse").glob(f"*/{_RECORD}"))
    yield from sorted(wheels, key=lambda wheel: (wheel.inputs.name, wheel.inputs.version, wheel.key))


def keep(store: Store, inputs: CompileInputs, wheel: Path) -> KeptWheel:
    """Copy a finished wheel into the store, unless the store has one for these inputs.

    The record is written last, and a wheel without a record does not count, so an interrupted copy is never used.
    """
    refuse_misfit(inputs.name, inputs.version, inputs.platform, wheel)
    folder = store.root / "wheelhouse" / inputs.key
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if (folder / _RECORD).exists():
            return _read(folder / _RECORD)
        target = folder / wheel.name
        with wheel.open("rb") as source, writing(target) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
        record = {
            "format": FORMAT,
            "filename": wheel.name,
            "sha256": file_sha256(target),
            "size": target.stat().st_size,
            "inputs": inputs.as_json(),
        }
        with writing(folder / _RECORD) as file:
            file.write(json.dumps(record, indent=1, sort_keys=True).encode() + b"\n")
        return _read(folder / _RECORD)


def refuse_damaged(wheel: KeptWheel) -> None:
    if file_sha256(wheel.path) != wheel.sha256:
        raise _damaged(wheel.path, f"Its sha256 is not {wheel.sha256}.")


def _read(record: Path) -> KeptWheel:
    try:
        data = json.loads(record.read_text("utf-8"))
        inputs = CompileInputs.from_json(data["inputs"])
        path = record.with_name(Path(data["filename"]).name)
        kept = KeptWheel(path.name, Sha256(data["sha256"]), int(data["size"]), inputs, path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(record, f"The record cannot be read: {type(error).__name__}.") from None
    if inputs.key != record.parent.name:
        raise _damaged(record, "Its inputs give another key than the folder's name.")
    # Only the size: a listing would otherwise hash every wheel; refuse_damaged does so for the one that is used.
    if not path.is_file() or path.stat().st_size != kept.size:
        raise _damaged(path, f"It is missing, or does not have {kept.size} bytes.")
    return kept


def _damaged(path: Path, why: str) -> InputError:
    return InputError(
        "damaged-wheel",
        f"The wheelhouse holds a damaged {path.name}.",
        where=path,
        why=why,
        fix=f"Remove the folder {path.parent}: builds then take the registry's wheel. Or compile it again.",
    )


GRAFT_FORMAT: Final = 1
GRAFT_RECORD: Final = "imagefactory.json"  # the file in dist-info that says it


def published_source(sha256: str) -> dict[str, str]:
    """Return how the sources of a compile name the published wheel that it takes something from."""
    return {"published": f"wheel:{sha256}"}


def read_graft(wheel: Path, inputs: CompileInputs) -> Graft:
    """Return what a grafted wheel says about its files; raise an error if that is not true."""
    try:
        with ZipFile(wheel) as archive:
            record = _graft_record(archive)
            graft = Graft.model_validate(record["graft"])
            changed = (file for file in graft.replaced if sha256_of(archive.read(file.path)) != file.sha256)
            wrong = [file.path for file in changed]
    except (OSError, BadZipFile, KeyError, TypeError, ValueError) as error:
        raise _no_graft(wheel, f"It has no {GRAFT_RECORD} that can be read: {type(error).__name__}.") from None
    if wrong:
        raise _no_graft(wheel, f"{', '.join(wrong)} is not the file that its {GRAFT_RECORD} names.")
    of_published = published_source(graft.sha256).items() <= inputs.sources.items()
    if record.get("key") != inputs.key or not of_published:
        raise _no_graft(wheel, f"Its {GRAFT_RECORD} is about another compile.")
    return graft


def graft_of(wheel: Path) -> Graft | None:
    """Return what a wheel says about itself, unchecked; None if it is no graft."""
    with ZipFile(wheel) as archive, suppress(KeyError, TypeError, ValueError):
        return Graft.model_validate(_graft_record(archive)["graft"])
    return None


def _graft_record(archive: ZipFile) -> dict[str, Any]:
    places = [name for name in archive.namelist() if name.endswith(f".dist-info/{GRAFT_RECORD}")]
    record: dict[str, Any] = parse_json(archive.read(places[0])) if places else {}
    return record


def _no_graft(wheel: Path, why: str) -> InputError:
    return _wrong(wheel, f"{wheel.name} does not say which of its files were compiled.", why)
