"""The base of all locks, which pin the exact files of images by sha256 and name no URL or host.

`made_from` holds checksums of the parts of matrix.yaml that a lock was made from, to detect drift; `integrity` is a
checksum of the lock's own content, to detect manual edits.
"""

from __future__ import annotations

import re
import tomllib
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from imagefactory.errors import Location, LockError
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Sha256, checksum

Hash = Annotated[Sha256, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
MadeFrom = dict[str, Hash]
"""Checksums of the parts of matrix.yaml that a lock was made from, by name, to tell which of them changed."""


class Frozen(BaseModel):
    """Part of a lock; nothing changes it."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=False)


class Lock(Frozen):
    """The base of all kinds of lock: checksums, reading and atomic writing."""

    header: ClassVar[str]
    maker: ClassVar[str] = "lock"
    """The command that writes it."""

    format: Literal[1] = 1
    made_from: MadeFrom
    integrity: str = ""

    @abstractmethod
    def home(self, locks: Path) -> Path:
        """Return the path where a lock with this content belongs."""

    def content_checksum(self) -> Sha256:
        """Hash everything except the checksum itself."""
        return checksum(self.model_dump(mode="json", exclude={"integrity"}))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a lock file."""
        try:
            raw = tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise LockError(
                "no-lock",
                f"There is no lock {path.name} yet.",
                where=path,
                why="Nothing can be planned or built before its files are pinned.",
                fix="Run `./inv lock` for this target and commit the result.",
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
            raise LockError(
                "lock-edited",
                f"The lock {path.name} was changed by hand.",
                where=Location(file=str(path), line=_line_of_integrity(path)),
                why=f"Its content no longer matches the checksum that `./inv {cls.maker}` wrote into it.",
                fix=f"Undo the edit (git checkout), or change matrix.yaml and run `./inv {cls.maker}`.",
            )
        return lock

    def write(self, path: Path) -> bool:
        """Write the lock atomically; return whether the file changed."""
        sealed = self.model_copy(update={"integrity": self.content_checksum()})
        data = sealed.model_dump(mode="json", exclude_defaults=True)
        data = {"format": self.format, "integrity": sealed.integrity, **data}
        text = f"# {self.header}\n# Made by `invoke {self.maker}`; do not edit.\n" + tomli_w.dumps(data)
        if path.exists() and path.read_text("utf-8") == text:
            return False
        write_text(path, text)
        return True


class SingleLock(Lock):
    """A kind of lock that a checkout has only one of."""

    file: ClassVar[str]

    @classmethod
    def path(cls, locks: Path) -> Path:
        """Return where this lock is kept."""
        return locks / cls.file

    def home(self, locks: Path) -> Path:
        """Return the path where a lock with this content belongs."""
        return self.path(locks)


def first_problem(error: ValidationError) -> str:
    """Describe the first problem in a document, and where it is."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"


def _unreadable(path: Path, why: str) -> LockError:
    line = re.search(r"at line (\d+)", why)
    return LockError(
        "bad-lock",
        f"The lock {path.name} cannot be read.",
        where=Location(file=str(path), line=int(line[1]) if line else None),
        why=why,
        fix="Restore it from git, or delete it and run `./inv lock`.",
    )


def _line_of_integrity(path: Path) -> int | None:
    lines = enumerate(path.read_text("utf-8").splitlines(), 1)
    return next((number for number, line in lines if line.startswith("integrity =")), None)
