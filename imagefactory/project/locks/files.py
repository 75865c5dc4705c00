"""The locks of wheels, Debian packages, sources, tools, models and licences."""

from __future__ import annotations

from operator import not_
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from imagefactory.project.cells import KernelOrigin
from imagefactory.project.locks.lock import Frozen, Hash, Lock, SingleLock
from imagefactory.project.server_names import VLLM, server_name


class ReplacedFile(Frozen):
    """A file of a published wheel that a compiled one took the place of."""

    path: str
    published: Hash
    """The sha256 of the published file."""
    sha256: Hash


class Graft(Frozen):
    """What a grafted wheel consists of: files of a published wheel, and those that replaced some of them."""

    file: str
    """The published wheel."""
    sha256: Hash
    replaced: tuple[ReplacedFile, ...] = Field(min_length=1)


class LeftOutFiles(Frozen):
    """Files of a wheel that are not installed, and why nothing misses them (matrix.yaml `leave_out`)."""

    reason: str
    unpacked: int
    paths: tuple[str, ...] = Field(min_length=1)


class LockedWheel(Frozen):
    """One wheel, identified by its sha256 on whichever index it is found."""

    name: str
    version: str
    file: str
    sha256: Hash
    size: int
    unpacked: int
    needed_by: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Paths not installed from this wheel because another wheel wins them (matrix.yaml `conflicts`)."""
    left_out: Annotated[tuple[LeftOutFiles, ...], Field(exclude_if=not_)] = ()
    compiled: Hash | None = None
    """The key of the compile that produced the wheel; None for a published wheel."""
    graft: Graft | None = None
    """Which files are whose, in a wheel that was compiled in part."""

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not set, so that locks from before these fields existed keep their checksums."""
        data: dict[str, Any] = serialize(self)
        return {name: value for name, value in data.items() if value is not None}

    @property
    def pure(self) -> bool:
        """True when the wheel is the same for every platform."""
        return self.file.endswith("-any.whl")

    @property
    def not_installed(self) -> tuple[str, ...]:
        """The paths that the wheel has and the image does not get from it."""
        left = (path for files in self.left_out for path in files.paths)
        return tuple(sorted({*self.without, *left}))

    @property
    def installed_size(self) -> int:
        """The size on disk of what is installed."""
        return self.unpacked - sum(files.unpacked for files in self.left_out)


class LeftOutWheel(LockedWheel):
    """A wheel that vLLM requires and the image does not get (matrix.yaml `leave_out`)."""

    reason: str


class LockedDeb(Frozen):
    """One Debian package; `file` is its path below the archive root."""

    name: str
    version: str
    architecture: str
    archive: Literal["main", "security"]
    file: str
    sha256: Hash
    size: int
    unpacked: int
    needed_by: tuple[str, ...]


class LockedSuite(Frozen):
    """A suite of the archive at the time of locking, when its signature was verified."""

    name: str
    archive: Literal["main", "security"]
    date: str
    """The `Date` of the signed Release file as YYYYMMDDTHHMMSSZ, which names a state of the snapshot archive."""


class WheelLock(Lock):
    """Every wheel of one version of a server on one arch and platform."""

    header: ClassVar[str] = (
        "The wheels of one version of a server for one arch: names and hashes, found on any index."
    )

    version: str
    arch: str
    platform: str
    python: str
    kernels: KernelOrigin
    wheels: tuple[LockedWheel, ...] = Field(min_length=1)
    left_out: Annotated[tuple[LeftOutWheel, ...], Field(exclude_if=not_)] = ()

    @model_validator(mode="before")
    @classmethod
    def _read_as_before(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {"version" if name == VLLM else name: value for name, value in data.items()}

    @model_serializer(mode="wrap")
    def _written_as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Call a version of vLLM `vllm`, so that locks from before the second server keep their checksums."""
        name = VLLM if server_name(self.version) == VLLM else "version"
        return {name if key == "version" else key: value for key, value in serialize(self).items()}

    @classmethod
    def path(cls, locks: Path, version: str, arch: str, platform: str) -> Path:
        """Return where the wheels of a version are locked for an arch and platform."""
        return locks / version / f"{arch}-{platform.replace('/', '-')}.toml"

    def home(self, locks: Path) -> Path:
        """Return the path where a lock with this content belongs."""
        return self.path(locks, self.version, self.arch, self.platform)


class BaseLock(Lock):
    """Every Debian package of one base on one platform."""

    header: ClassVar[str] = "The Debian packages of one base: names and hashes, found on any mirror."

    base: str
    platform: str
    suites: tuple[LockedSuite, ...]
    debs: tuple[LockedDeb, ...] = Field(min_length=1)

    @classmethod
    def path(cls, locks: Path, base: str, platform: str) -> Path:
        """Return where the Debian packages of a base are locked for a platform."""
        return locks / base / f"{platform.replace('/', '-')}.toml"

    def home(self, locks: Path) -> Path:
        """Return the path where a lock with this content belongs."""
        return self.path(locks, self.base, self.platform)


class LockedSource(Frozen):
    """An archive of a release (its sdist or one of its wheels) that mods are checked against."""

    name: str
    version: str
    file: str
    sha256: Hash
    size: int


class SourceLock(SingleLock):
    """The archives of every vLLM release of the matrix."""

    file: ClassVar[str] = "sources.toml"
    header: ClassVar[str] = "One wheel and the sdist of every vLLM release: what mods are checked against."

    sources: tuple[LockedSource, ...] = ()

    def find(self, version: str, suffix: str) -> LockedSource | None:
        """Return the wheel (`.whl`) or the sdist (`.tar.gz`) of a release."""
        found = (entry for entry in self.sources if entry.version == version and entry.file.endswith(suffix))
        return next(found, None)


class ToolLock(SingleLock):
    """The programs that the factory itself runs, for each machine architecture."""

    file: ClassVar[str] = "tools.toml"
    header: ClassVar[str] = (
        "The wheels of programs that the factory itself runs, for every machine it may run on."
    )

    amd64: tuple[LockedSource, ...] = ()
    arm64: tuple[LockedSource, ...] = ()

    def find(self, name: str, machine: str) -> LockedSource:
        """Return the wheel of a program for a machine."""
        entries = self.arm64 if machine == "arm64" else self.amd64
        return next(entry for entry in entries if entry.name == name)


class LockedRevision(Frozen):
    """A model repository at one commit."""

    repo: str
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


class ModelLock(SingleLock):
    """The models of the matrix, and the revisions of those that were looked up."""

    file: ClassVar[str] = "models.toml"
    header: ClassVar[str] = "The models of the matrix, and their revisions on the model hub where pinned."

    revisions: tuple[LockedRevision, ...] = ()

    def commit_of(self, repo: str) -> str | None:
        """Return the pinned commit of a model repository, if it has one."""
        return next((entry.commit for entry in self.revisions if entry.repo == repo), None)


class LicensedFile(Frozen):
    """A locked file and the licence that its package declares."""

    file: str
    sha256: Hash
    licence: str
    """An SPDX expression, or a LicenseRef where the package does not use an SPDX identifier."""
    says: Literal["expression", "field", "classifier", "text", "copyright", "elsewhere", "nothing"]
    """Where it is declared: License-Expression, License, a classifier, a licence text, a Debian copyright file."""
    notices: tuple[str, ...] = ()
    """GNU licences mentioned in the package's notices, mostly for bundled libraries."""


class LicenceLock(SingleLock):
    """The licence of every file that a lock names."""

    file: ClassVar[str] = "licences.toml"
    header: ClassVar[str] = "The licences of all locked wheels and Debian packages, as they declare them."

    files: tuple[LicensedFile, ...] = ()
