"""What a replay of a script is given, and what it reports; compile/replay.py runs it in a container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

SECONDS: Final = 300
"""The time that a script gets."""


class ProgramCall(BaseModel):
    """A program that the script called."""

    model_config = ConfigDict(extra="ignore")

    program: str
    address: str = ""
    supplied: bool = False
    wants: list[str] = []
    probe: bool = False
    reverse: bool = False
    status: int = 0
    failed: bool = False
    already: bool = False
    said: str = ""


class Report(BaseModel):
    """What a replay came to; none of it can be trusted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    status: int | None
    """The exit status of the script; None after the time was over."""
    output: str
    left_running: list[str]
    full: list[str]
    """The places that the script filled."""
    journal: str
    changed: dict[str, str]
    """The content of new and changed files of the distributions, in base64."""
    workspace: dict[str, str]
    """The same, of files that the script left in its working folder."""
    deleted: list[str]
    odd: dict[str, str]
    """Links, devices and the like, with the letter that `ls` shows for their kind."""
    modes: list[str]
    too_large: list[str]
    outside: list[str]
    rejects: list[str]

    @property
    def calls(self) -> list[ProgramCall]:
        """The calls of programs that the factory stands in for."""
        found: list[ProgramCall] = []
        for line in self.journal.splitlines():
            with suppress(ValidationError):
                found.append(ProgramCall.model_validate_json(line))
        return found


@dataclass(frozen=True)
class Order:
    """What to replay."""

    name: str
    mod: Path
    """A tar file with the script's folder."""
    supplied: Path
    """A tar file with what the script would download."""
    wheels: Sequence[Path]
    locked: Mapping[str, str]
    """The versions of all packages that an image has."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The supplied files, by address or by the last part of one."""
    env: Mapping[str, str] = field(default_factory=dict)
    seconds: float = SECONDS
