"""Lock files: sealed TOML of what images are made from, with names and hashes, but no URL or host.

`made_from` holds checksums of the parts of matrix.yaml that a lock was made from, to detect drift; `integrity` is a
checksum of the lock's own content, to detect manual edits.
"""

import re
import tomllib
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from imagefactory.errors import FactoryError, Location, LockError
from imagefactory.project.cells import KernelOrigin
from imagefactory.project.wording import first_problem
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Sha256, checksum

Hash = Annotated[Sha256, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
MadeFrom = dict[str, Hash]  # checksums of the parts of matrix.yaml that a lock was made from, by name


class Frozen(BaseModel):
    """Part of a lock, a record or a result; nothing changes it."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=False)


class Document(Frozen):
    """A record or a result: JSON in a file of its own, or in a registry."""

    indent: ClassVar[int | None] = 1

    def to_json(self) -> str:
        return self.model_dump_json(indent=self.indent) + "\n"

    def write(self, path: Path) -> None:
        write_text(path, self.to_json())

    @classmethod
    def from_json(cls, text: bytes | str, where: Path | str) -> Self:
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise cls.unreadable(where, f"{first_problem(error)}.") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            return cls.from_json(path.read_bytes(), path)
        except OSError as error:
            raise cls.unreadable(path, f"{error.strerror or error}.") from None

    @staticmethod
    def unreadable(where: Path | str, why: str) -> FactoryError:
        """Make the error for a document that is missing, damaged or of another kind."""
        raise NotImplementedError


class Lock(Frozen):
    """The base of all kinds of lock: checksums, reading and atomic writing."""

    header: ClassVar[str]
    maker: ClassVar[str] = "lock"  # the command that writes it
    file: ClassVar[str]  # its path below locks/, with a gap for each part of its name
    named_by: ClassVar[tuple[str, ...]] = ()  # the fields that fill the gaps

    format: Literal[1] = 1
    made_from: MadeFrom
    integrity: str = ""

    @classmethod
    def path(cls, locks: Path, *parts: str) -> Path:
        return locks / cls.file.format(*(part.replace("/", "-") for part in parts))

    def home(self, locks: Path) -> Path:
        return self.path(locks, *(getattr(self, name) for name in self.named_by))

    def content_checksum(self) -> Sha256:
        """Hash everything that the file says except the checksum itself."""
        # Without defaults: a new field changes no checksum of locks that do not use it.
        return checksum(self.model_dump(mode="json", exclude={"integrity"}, exclude_defaults=True))

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            lock = cls.model_validate(tomllib.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            raise LockError(
                "no-lock",
                f"There is no lock {path.name} yet.",
                where=path,
                why="Nothing can be planned or built before its files are pinned.",
                fix="Run `./inv lock` for this target and commit the result.",
            ) from None
        except ValidationError as error:
            raise _unreadable(path, first_problem(error)) from None
        except (OSError, ValueError, RecursionError) as error:  # not TOML, not UTF-8, or absurd numbers
            raise _unreadable(path, str(error)) from None
        if lock.integrity != lock.content_checksum():
            lines = enumerate(path.read_text("utf-8").splitlines(), 1)
            line = next((number for number, text in lines if text.startswith("integrity =")), None)
            raise LockError(
                "lock-edited",
                f"The lock {path.name} was changed by hand.",
                where=Location(file=str(path), line=line),
                why=f"Its content no longer matches the checksum that `./inv {cls.maker}` wrote into it.",
                fix=f"Undo the edit (git checkout), or change matrix.yaml and run `./inv {cls.maker}`.",
            )
        return lock

    def write(self, path: Path) -> bool:
        """Write the lock atomically; return whether the file changed."""
        sealed = self.model_copy(update={"integrity": self.content_checksum()})
        data = sealed.model_dump(mode="json", exclude_defaults=True)
        # The format is a default, which `data` lacks; readers find both at the top.
        data = {"format": self.format, "integrity": sealed.integrity, **data}
        text = f"# {self.header}\n# Made by `./inv {self.maker}`; do not edit.\n" + tomli_w.dumps(data)
        if path.exists() and path.read_text("utf-8") == text:
            return False
        write_text(path, text)
        return True


def _unreadable(path: Path, why: str) -> LockError:
    line = re.search(r"at line (\d+)", why)
    return LockError(
        "bad-lock",
        f"The lock {path.name} cannot be read.",
        where=Location(file=str(path), line=int(line[1]) if line else None),
        why=why,
        fix="Restore it from git, or delete it and run `./inv lock`.",
    )


class ReplacedFile(Frozen):
    """A file of a published wheel that a compiled one took the place of."""

    path: str
    published: Hash  # the sha256 of the published file
    sha256: Hash


class Graft(Frozen):
    """What a grafted wheel consists of: files of a published wheel, and those that replaced some of them."""

    file: str  # the published wheel
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
    without: tuple[str, ...] = ()  # paths that another wheel wins (matrix.yaml `conflicts`)
    left_out: tuple[LeftOutFiles, ...] = ()
    compiled: Hash | None = None  # the key of the compile that produced the wheel; None for a published wheel
    graft: Graft | None = None  # which files are whose, in a wheel that was compiled in part

    @property
    def pure(self) -> bool:
        return self.file.endswith("-any.whl")

    @property
    def not_installed(self) -> tuple[str, ...]:
        """The paths that the wheel has and the image does not get from it."""
        left_out = (path for files in self.left_out for path in files.paths)
        return tuple(sorted({*self.without, *left_out}))

    @property
    def installed_size(self) -> int:
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
    date: str  # of the signed Release file, as YYYYMMDDTHHMMSSZ; names a state of the snapshot archive


class WheelLock(Lock):
    """Every wheel of one version of a server on one arch and platform."""

    header: ClassVar[str] = "The wheels of one version of a server for one arch: names and hashes, found on any index."
    file: ClassVar[str] = "{}/{}-{}.toml"
    named_by: ClassVar[tuple[str, ...]] = ("version", "arch", "platform")

    version: str
    arch: str
    platform: str
    python: str
    kernels: KernelOrigin
    wheels: tuple[LockedWheel, ...] = Field(min_length=1)
    left_out: tuple[LeftOutWheel, ...] = ()


class BaseLock(Lock):
    """Every Debian package of one base on one platform."""

    header: ClassVar[str] = "The Debian packages of one base: names and hashes, found on any mirror."
    file: ClassVar[str] = "{}/{}.toml"
    named_by: ClassVar[tuple[str, ...]] = ("base", "platform")

    base: str
    platform: str
    suites: tuple[LockedSuite, ...]
    debs: tuple[LockedDeb, ...] = Field(min_length=1)


class LockedSource(Frozen):
    """An archive of a release (its sdist or one of its wheels) that mods are checked against."""

    name: str
    version: str
    file: str
    sha256: Hash
    size: int


class SourceLock(Lock):
    """The archives of every vLLM release of the matrix."""

    file: ClassVar[str] = "sources.toml"
    header: ClassVar[str] = "One wheel and the sdist of every vLLM release: what mods are checked against."

    sources: tuple[LockedSource, ...] = ()

    def find(self, version: str, suffix: str) -> LockedSource | None:
        matching = (entry for entry in self.sources if entry.version == version and entry.file.endswith(suffix))
        return next(matching, None)


class ToolLock(Lock):
    """The programs that the factory itself runs, for each machine architecture."""

    file: ClassVar[str] = "tools.toml"
    header: ClassVar[str] = "The wheels of programs that the factory itself runs, for every machine it may run on."

    amd64: tuple[LockedSource, ...] = ()
    arm64: tuple[LockedSource, ...] = ()

    def find(self, name: str, machine: str) -> LockedSource:
        entries = self.arm64 if machine == "arm64" else self.amd64
        for entry in entries:
            if entry.name == name:
                return entry
        raise LockError(
            "no-lock",
            f"The program {name} is not locked.",
            where="locks/tools.toml",
            why="The factory runs it, and `tools` in matrix.yaml does not name it.",
            fix="Name it there, and run `./inv lock`.",
        )


class LockedRevision(Frozen):
    """A model repository at one commit."""

    repo: str
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


class ModelLock(Lock):
    """The models of the matrix, and the revisions of those that were looked up."""

    file: ClassVar[str] = "models.toml"
    header: ClassVar[str] = "The models of the matrix, and their revisions on the model hub where pinned."

    revisions: tuple[LockedRevision, ...] = ()

    def commit_of(self, repo: str) -> str | None:
        return next((entry.commit for entry in self.revisions if entry.repo == repo), None)


class LockedCompanion(Frozen):
    """An image of others: its name and tag in matrix.yaml, and what the tag named when it was looked up."""

    name: str
    tag: str
    digest: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class CompanionLock(Lock):
    """The digests of the images that compose files start beside a server, where they were looked up."""

    file: ClassVar[str] = "companions.toml"
    maker: ClassVar[str] = "lock --upgrade companions"
    header: ClassVar[str] = "The digests of images of others that compose files start beside a server."

    images: tuple[LockedCompanion, ...] = ()

    def digest_of(self, name: str, tag: str) -> str | None:
        return next((entry.digest for entry in self.images if (entry.name, entry.tag) == (name, tag)), None)


class LicensedFile(Frozen):
    """A locked file and the licence that its package declares."""

    file: str
    sha256: Hash
    licence: str  # an SPDX expression, or a LicenseRef where the package does not use an SPDX identifier
    says: Literal["expression", "field", "classifier", "text", "copyright", "elsewhere", "nothing"]
    """Where it is declared: License-Expression, License, a classifier, a licence text, a Debian copyright file."""
    notices: tuple[str, ...] = ()  # GNU licences in its notices, mostly of bundled libraries


class LicenceLock(Lock):
    """The licence of every file that a lock names."""

    file: ClassVar[str] = "licences.toml"
    header: ClassVar[str] = "The licences of all locked wheels and Debian packages, as they declare them."

    files: tuple[LicensedFile, ...] = ()
