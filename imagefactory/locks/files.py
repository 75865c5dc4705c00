"""Locks: the exact files an image is made of, without saying where they come from.

A lock holds file names, sizes and sha256 sums, never a URL or a host. It also holds checksums: `made_from`
over the parts of matrix.yaml that it answers (so drift is seen) and `integrity` over its own content (so an
edit by hand is seen).
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
)

from imagefactory.errors import Location
from imagefactory.errors.locks import LockEditedError, LockFormatError, LockMissingError
from imagefactory.matrix.cells import KernelOrigin
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Sha256, checksum

FORMAT = 1

Hash = Annotated[Sha256, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
MadeFrom = dict[str, Hash]
"""Checksums of the parts of matrix.yaml that a lock answers, by name, so that drift can say what changed."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class LockedWheel(_Frozen):
    """One wheel, recognised by its sha256 wherever it is found."""

    name: str
    version: str
    file: str
    sha256: Hash
    size: int
    unpacked: int
    needed_by: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Installed paths left out of this wheel because another one wins them (matrix.yaml `conflicts`)."""
    compiled: Hash | None = None
    """The key of the compile that made it; a wheel without one is its publisher's own."""

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what a published wheel does not have, so that locks from before there was such a thing hold."""
        data: dict[str, Any] = serialize(self)
        return {name: value for name, value in data.items() if name != "compiled" or value is not None}

    @property
    def pure(self) -> bool:
        """True when the wheel is the same for every platform."""
        return self.file.endswith("-any.whl")


class LockedDeb(_Frozen):
    """One Debian package. `file` is its path below the archive's root."""

    name: str
    version: str
    architecture: str
    archive: Literal["main", "security"]
    file: str
    sha256: Hash
    size: int
    unpacked: int
    needed_by: tuple[str, ...]


class LockedSuite(_Frozen):
    """A suite of the archive as it stood when the lock was made; its signature was verified then."""

    name: str
    archive: Literal["main", "security"]
    date: str
    """The `Date` of the signed Release file, as YYYYMMDDTHHMMSSZ: names a moment of the snapshot archive."""


class _Lock(_Frozen):
    """What both kinds of lock share: checksums, reading and atomic writing."""

    header: ClassVar[str]

    format: Literal[1] = 1
    made_from: MadeFrom
    integrity: str = ""

    def content_checksum(self) -> Sha256:
        """Hash everything but the checksum itself."""
        return checksum(self.model_dump(mode="json", exclude={"integrity"}))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a lock file."""
        try:
            raw = tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise LockMissingError(
                f"There is no lock {path.name} yet.",
                where=path,
                why="Nothing can be planned or built before its files are pinned.",
                fix="Run `invoke lock` for this target and commit the result.",
            ) from None
        except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or absurd numbers
            raise _unreadable(path, str(error)) from None
        except OSError as error:
            raise _unreadable(path, error.strerror or type(error).__name__) from None
        try:
            lock = cls.model_validate(raw)
        except ValidationError as error:
            raise _unreadable(path, first_problem(error)) from None
        if lock.integrity != lock.content_checksum():
            raise LockEditedError(
                f"The lock {path.name} was changed by hand.",
                where=Location(file=str(path), line=_line_of(path, "integrity")),
                why="Its content no longer matches the checksum that `invoke lock` wrote into it.",
                fix="Undo the edit (git checkout), or change matrix.yaml and run `invoke lock`.",
            )
        return lock

    def write(self, path: Path) -> bool:
        """Write the lock in one step; say whether the file changed."""
        sealed = self.model_copy(update={"integrity": self.content_checksum()})
        data = sealed.model_dump(mode="json", exclude_defaults=True)
        data = {"format": FORMAT, "integrity": sealed.integrity, **data}
        text = f"# {self.header}\n# Made by `invoke lock`; do not edit.\n" + tomli_w.dumps(data)
        if path.exists() and path.read_text("utf-8") == text:
            return False
        write_text(path, text)
        return True


class WheelLock(_Lock):
    """Every wheel of one vLLM version on one arch and platform."""

    header: ClassVar[str] = (
        "The wheels of one vLLM version for one arch: names and hashes, found on any index."
    )

    vllm: str
    arch: str
    platform: str
    python: str
    kernels: KernelOrigin
    wheels: tuple[LockedWheel, ...] = Field(min_length=1)


class BaseLock(_Lock):
    """Every Debian package of one base on one platform."""

    header: ClassVar[str] = "The Debian packages of one base: names and hashes, found on any mirror."

    base: str
    platform: str
    suites: tuple[LockedSuite, ...]
    debs: tuple[LockedDeb, ...] = Field(min_length=1)


class LockedSource(_Frozen):
    """A release's archive that mods are checked against: its sdist, or one of its wheels."""

    name: str
    version: str
    file: str
    sha256: Hash
    size: int


class SourceLock(_Lock):
    """The archives of every vLLM release of the matrix."""

    header: ClassVar[str] = "One wheel and the sdist of every vLLM release: what mods are checked against."

    sources: tuple[LockedSource, ...] = ()

    def find(self, version: str, suffix: str) -> LockedSource | None:
        """Give the wheel (`.whl`) or the sdist (`.tar.gz`) of a release."""
        found = (entry for entry in self.sources if entry.version == version and entry.file.endswith(suffix))
        return next(found, None)


class ToolLock(_Lock):
    """Programs that the factory runs, for each kind of machine it may run on."""

    header: ClassVar[str] = (
        "The wheels of programs that the factory itself runs, for every machine it may run on."
    )

    amd64: tuple[LockedSource, ...] = ()
    arm64: tuple[LockedSource, ...] = ()

    def find(self, name: str, machine: str) -> LockedSource:
        """Give the wheel of a program for a machine."""
        return next(
            entry for entry in (self.arm64 if machine == "arm64" else self.amd64) if entry.name == name
        )


class LibraryKernels(_Frozen):
    """How many cubins and PTX texts a shared library of a wheel has for each architecture."""

    name: str
    cubins: dict[str, int] = {}
    ptx: dict[str, int] = {}
    fp4: bool = False


class WheelKernels(_Frozen):
    """What a wheel holds for GPUs: one entry for each of its libraries that holds anything."""

    file: str
    sha256: Hash
    libraries: tuple[LibraryKernels, ...] = ()


class KernelLock(_Lock):
    """What the locked wheels hold for GPUs, so that an image can say it and a plan need not look."""

    header: ClassVar[str] = (
        "For which chips the kernels of the locked wheels were compiled, read with cuobjdump."
    )

    wheels: tuple[WheelKernels, ...] = ()

    def find(self, sha256: str) -> WheelKernels | None:
        """Give what is recorded of a wheel."""
        return next((wheel for wheel in self.wheels if wheel.sha256 == sha256), None)


class LockedRevision(_Frozen):
    """A model repository at one commit."""

    repo: str
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


class ModelLock(_Lock):
    """Which models the matrix had, and the revisions of those that could be looked up."""

    header: ClassVar[str] = "The models of the matrix, and their revisions on the model hub where pinned."

    revisions: tuple[LockedRevision, ...] = ()

    def commit_of(self, repo: str) -> str | None:
        """Give the pinned commit of a model repository, if it has one."""
        return next((entry.commit for entry in self.revisions if entry.repo == repo), None)


class LicensedFile(_Frozen):
    """A locked file and its licence, as the package in it declares it."""

    file: str
    sha256: Hash
    licence: str
    """An SPDX expression; a LicenseRef where the package's words are no SPDX name."""
    says: Literal["expression", "field", "classifier", "text", "copyright", "nothing"]
    """Where the package says so: License-Expression, License, a classifier, a licence text, a Debian copyright file."""
    notices: tuple[str, ...] = ()
    """GNU licences that the package's notices mention, mostly for libraries that it bundles."""


class LicenceLock(_Lock):
    """The licence of every file that a lock names."""

    header: ClassVar[str] = "The licences of all locked wheels and Debian packages, as they declare them."

    files: tuple[LicensedFile, ...] = ()


def wheel_lock_path(root: Path, vllm: str, arch: str, platform: str) -> Path:
    """Say where the wheels of a vLLM version on an arch are locked."""
    return root / vllm / f"{arch}-{platform.replace('/', '-')}.toml"


def base_lock_path(root: Path, base: str, platform: str) -> Path:
    """Say where the Debian packages of a base are locked."""
    return root / base / f"{platform.replace('/', '-')}.toml"


def source_lock_path(root: Path) -> Path:
    """Say where the archives of vLLM releases are locked."""
    return root / "sources.toml"


def tool_lock_path(root: Path) -> Path:
    """Say where the factory's own programs are locked."""
    return root / "tools.toml"


def kernel_lock_path(root: Path) -> Path:
    """Say where it is recorded what wheels hold for GPUs."""
    return root / "kernels.toml"


def model_lock_path(root: Path) -> Path:
    """Say where model revisions are locked."""
    return root / "models.toml"


def licence_lock_path(root: Path) -> Path:
    """Say where the licences of locked files are recorded."""
    return root / "licences.toml"


def first_problem(error: ValidationError) -> str:
    """Say where a document is first wrong, and what is wrong there."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"


def _unreadable(path: Path, why: str) -> LockFormatError:
    line = re.search(r"at line (\d+)", why)
    return LockFormatError(
        f"The lock {path.name} cannot be read.",
        where=Location(file=str(path), line=int(line[1]) if line else None),
        why=why,
        fix="Restore it from git, or delete it and run `invoke lock`.",
    )


def _line_of(path: Path, key: str) -> int | None:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.startswith(f"{key} ="):
            return number
    return None
