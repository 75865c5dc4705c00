"""Keeps compiled wheels in the store, each under a key of its inputs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from filelock import FileLock
from packaging.utils import canonicalize_name
from pydantic import TypeAdapter

from imagefactory.errors import InputError
from imagefactory.lock.wheelhouse.fit import refuse_misfit
from imagefactory.store.atomic import writing
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, checksum, file_sha256

CompiledKind = Literal["whole", "graft"]
FORMAT: Final = 1
_RECORD = "inputs.json"


@dataclass(frozen=True, kw_only=True)
class CompileInputs:
    """Everything that determines the result of a compile."""

    name: str
    """The distribution: vllm, flashinfer-jit-cache, ..."""
    version: str
    sources: Mapping[str, str]
    """The commit or tree digest of every source, by name."""
    mods: tuple[str, ...] = ()
    """The sha256 of every mod applied to the sources, in order."""
    toolchain: str
    """The digest of the image with the compilers."""
    arch_list: str
    """The GPU targets in the compiler's notation, such as 12.1a."""
    platform: str
    """linux/arm64 or linux/amd64."""
    flags: tuple[str, ...] = ()
    kind: CompiledKind = "whole"
    system: Mapping[str, str] = field(default_factory=dict)
    """The Python, glibc and CUDA that the result is for; empty for libraries that no image gets."""

    @property
    def key(self) -> Sha256:
        """The key of the result; the order of the sources does not matter."""
        return checksum({"format": FORMAT, **self.as_json()})

    def as_json(self) -> dict[str, Any]:
        """Return the inputs as plain values."""
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
        """The key of its inputs."""
        return self.inputs.key


@dataclass(frozen=True)
class KeptWheel(CompiledWheel):
    """A compiled wheel in the store."""

    path: Path = field(compare=False)


def find(store: Store, key: str) -> KeptWheel | None:
    """Return the wheel with this key, or None if the store does not have it."""
    record = store.root / "wheelhouse" / key / _RECORD
    return _read(record) if record.exists() else None


def all_kept(store: Store) -> Iterator[KeptWheel]:
    """List the wheels in the store, by name and version."""
    found = map(_read, (store.root / "wheelhouse").glob(f"*/{_RECORD}"))
    yield from sorted(found, key=lambda wheel: (wheel.inputs.name, wheel.inputs.version, wheel.key))


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
    """Raise an error if a kept wheel no longer has its sha256."""
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
    if not path.is_file() or path.stat().st_size != kept.size:
        raise _damaged(path, f"It is missing, or does not have {kept.size} bytes.")
    return kept


def _damaged(path: Path, why: str) -> InputError:
    return InputError(
        "damaged-wheel",
        f"The wheelhouse holds a damaged {path.name}.",
        where=path,
        why=why,
        fix=f"Remove the folder {path.parent}, then run `./inv wheels.pull`, or compile it again.",
    )
