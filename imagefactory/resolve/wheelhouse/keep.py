"""Keeping compiled wheels in the store: each is named by its inputs, checked, and written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name

from imagefactory.environment.file_lock import exclusive
from imagefactory.errors.wheelhouse import DamagedWheelError
from imagefactory.resolve.wheelhouse.fit import refuse_misfit
from imagefactory.store.atomic import writing
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, checksum

FORMAT: Final = 1
_RECORD = "inputs.json"


@dataclass(frozen=True, kw_only=True)
class CompileInputs:
    """Everything that decides what a compile makes, as far as a compiler lets anything decide it."""

    name: str
    """The distribution: vllm, flashinfer-jit-cache, ..."""
    version: str
    sources: Mapping[str, str]
    """The commit, or the digest of the tree, of every source by its name."""
    mods: tuple[str, ...] = ()
    """The sha256 of every mod that was applied to the sources, in order."""
    toolchain: str
    """The digest of the image that holds the compilers."""
    arch_list: str
    """The chips, as compilers are told: 12.1a."""
    platform: str
    """linux/arm64 or linux/amd64."""
    flags: tuple[str, ...] = ()

    @property
    def key(self) -> Sha256:
        """The name of the result: the same inputs, in whatever order they were written down, give the same."""
        return checksum({"format": FORMAT, **self.as_json()})

    def as_json(self) -> dict[str, Any]:
        """Write the inputs as plain values."""
        return asdict(self) | {
            "name": canonicalize_name(self.name),
            "sources": dict(sorted(self.sources.items())),
            "mods": list(self.mods),
            "flags": list(self.flags),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CompileInputs:
        """Read what `as_json` wrote; anything else raises a KeyError, TypeError or ValueError."""
        texts = {name: str(data[name]) for name in ("name", "version", "toolchain", "arch_list", "platform")}
        sources = {str(name): str(value) for name, value in dict(data["sources"]).items()}
        mods, flags = (tuple(str(item) for item in data[name]) for name in ("mods", "flags"))
        return cls(**texts, sources=sources, mods=mods, flags=flags)


@dataclass(frozen=True)
class KeptWheel:
    """A compiled wheel that the store has."""

    key: Sha256
    filename: str
    sha256: Sha256
    size: int
    inputs: CompileInputs
    path: Path = field(compare=False)
    """Where it lies in this store."""


def find(store: Store, key: str) -> KeptWheel | None:
    """Return the wheel of a key, or None if the store does not have it."""
    record = store.root / "wheelhouse" / key / _RECORD
    return _read(record) if record.exists() else None


def all_kept(store: Store) -> Iterator[KeptWheel]:
    """List every wheel of the store, by name and version."""
    records = (store.root / "wheelhouse").glob(f"*/{_RECORD}")
    found = (_read(record) for record in records)
    yield from sorted(found, key=lambda wheel: (wheel.inputs.name, wheel.inputs.version, wheel.key))


def keep(store: Store, inputs: CompileInputs, wheel: Path) -> KeptWheel:
    """Take a finished wheel into the store; one that is already kept for these inputs stays as it is.

    The record is written last: a wheel without one counts as not there, so an interruption leaves nothing behind that
    anybody would use.
    """
    refuse_misfit(inputs.name, inputs.version, inputs.platform, wheel)
    folder = store.root / "wheelhouse" / inputs.key
    with exclusive(folder / ".lock"):
        if (folder / _RECORD).exists():
            return _read(folder / _RECORD)
        target = folder / wheel.name
        with wheel.open("rb") as source, writing(target) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
        record = {
            "format": FORMAT,
            "filename": wheel.name,
            "sha256": _sha256(target),
            "size": target.stat().st_size,
            "inputs": inputs.as_json(),
        }
        with writing(folder / _RECORD) as file:
            file.write(json.dumps(record, indent=1, sort_keys=True).encode() + b"\n")
        return _read(folder / _RECORD)


def refuse_damaged(wheel: KeptWheel) -> None:
    """Fail when the bytes of a kept wheel are not those that were put in."""
    if _sha256(wheel.path) != wheel.sha256:
        raise _damaged(wheel.path, f"Its sha256 is not {wheel.sha256}.")


def _read(record: Path) -> KeptWheel:
    try:
        data = json.loads(record.read_text("utf-8"))
        inputs = CompileInputs.from_json(data["inputs"])
        path = record.with_name(Path(data["filename"]).name)
        kept = KeptWheel(inputs.key, path.name, Sha256(data["sha256"]), int(data["size"]), inputs, path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(record, f"The record cannot be read: {type(error).__name__}.") from None
    if inputs.key != record.parent.name:
        raise _damaged(record, "Its inputs give another key than the folder's name.")
    if not path.is_file() or path.stat().st_size != kept.size:
        raise _damaged(path, f"It is missing, or does not have {kept.size} bytes.")
    return kept


def _damaged(path: Path, why: str) -> DamagedWheelError:
    return DamagedWheelError(
        f"The wheelhouse holds a damaged {path.name}.",
        where=path,
        why=why,
        fix=f"Remove the folder {path.parent}, then run `invoke wheels.pull`, or compile it again.",
    )


def _sha256(path: Path) -> Sha256:
    with path.open("rb") as file:
        return Sha256(hashlib.file_digest(file, "sha256").hexdigest())
