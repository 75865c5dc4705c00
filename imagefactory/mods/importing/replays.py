"""What a replay of a script is given and reports, and what came of it; compile/replay.py runs it in a container."""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, ValidationError

from imagefactory.errors import clean
from imagefactory.mods.importing.attempts import Attempt, in_image, settle
from imagefactory.mods.source_files import ReleaseSource

_KINDS = {"l": "a link", "p": "a pipe", "s": "a socket", "c": "a device", "b": "a device"}
_EXCEPTION = re.compile(r"^Traceback \(most recent call last\):$", re.MULTILINE)
_GAVE_UP = re.compile(
    r"not applicable|killed|can't|cannot|could ?n[o']t|fail|not found|no such|warning|error|unsupported|skipping",
    re.IGNORECASE,
)
_CONTENT = re.compile(r"already|previously applied|upstream|not needed|no longer|up to date|includes", re.IGNORECASE)
_UNSURE = re.compile(r"may (already|have)|already \w+ or |upstream\?", re.IGNORECASE)
_SHOWN = 200
SECONDS: Final = 300  # the time that a script gets


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

    status: int | None  # the exit status of the script; None after the time was over
    output: str
    left_running: list[str]
    full: list[str]  # the places that the script filled
    journal: str
    changed: dict[str, str]  # the content of new and changed files of the distributions, in base64
    workspace: dict[str, str]  # the same, of files that the script left in its working folder
    deleted: list[str]
    odd: dict[str, str]  # links, devices and the like, with the letter that `ls` shows for their kind
    modes: list[str]
    too_large: list[str]
    outside: list[str]
    rejects: list[str]

    @property
    def calls(self) -> list[ProgramCall]:
        found: list[ProgramCall] = []
        for line in self.journal.splitlines():
            with suppress(ValidationError):
                found.append(ProgramCall.model_validate_json(line))
        return found


@dataclass(frozen=True)
class Order:
    """What to replay."""

    name: str
    mod: Path  # a tar file with the script's folder
    supplied: Path  # a tar file with what the script would download
    wheels: Sequence[Path]
    locked: Mapping[str, str]  # the versions of all packages that an image has
    names: Mapping[str, str] = field(default_factory=dict)  # the supplied files, by address or its last part
    env: Mapping[str, str] = field(default_factory=dict)
    seconds: float = SECONDS


def judge(version: str, report: Report, distributions: list[ReleaseSource], locked: Mapping[str, str]) -> Attempt:
    addresses = tuple(dict.fromkeys(call.address for call in report.calls if call.address and not call.supplied))
    fault = next(_faults(report, addresses, locked), None)
    if fault is not None:
        return Attempt(version, "fails", fault, addresses=addresses)
    contents = {path: base64.b64decode(data) for path, data in report.changed.items()}
    contents |= {in_image(path): base64.b64decode(data) for path, data in report.workspace.items()}
    notes = (f"it also changes the permissions of {_list(report.modes)}",) if report.modes else ()
    attempt = settle(version, contents, distributions, notes=notes)
    return attempt if attempt.outcome != "nothing" else _judge_nothing(version, report)


def _faults(report: Report, addresses: tuple[str, ...], locked: Mapping[str, str]) -> Iterator[str]:
    """Yield why a replay is a failure, whatever the script's exit status, the most telling first."""
    wanted = dict.fromkeys(
        item
        for call in report.calls
        for item in call.wants
        if call.program.startswith("apt") or not _is_locked(item, locked)
    )
    odd, kind = next(iter(report.odd.items()), ("", ""))
    faults = {
        f"it fetches {_list(addresses)}": addresses,
        f"it installs {_list(wanted)}, which images get from their locks alone": wanted,
        f"it fills the space that it gets ({_list(report.full)})": report.full,
        "it does not end in time": report.status is None,
        f"it ends with code {report.status}: {_last_line(report.output)}": report.status,
        f"it starts a process that outlives it ({_list(report.left_running[:1])})": report.left_running,
        f"it deletes {_list(report.deleted)}": report.deleted,
        f"it makes {_KINDS.get(kind, 'something that is no file')} of {odd}": report.odd,
        f"it writes outside of the packages: {_list(report.outside)}": report.outside,
        f"it changes {_list(report.too_large)}, which no mod can": report.too_large,
    }
    yield from (fault for fault, found in faults.items() if found)
    yield from _swallowed(report, report.calls)


def _is_locked(requirement: str, locked: Mapping[str, str]) -> bool:
    with suppress(ValueError):  # InvalidRequirement, or a number with thousands of digits
        wanted = Requirement(requirement)
        version = locked.get(canonicalize_name(wanted.name))
        return version is not None and wanted.specifier.contains(version, prereleases=True)
    return False


def _swallowed(report: Report, calls: list[ProgramCall]) -> Iterator[str]:
    for call in calls:
        matters = call.program == "patch" or not report.changed
        if call.failed and matters and not (call.probe or call.already):
            yield f"it goes on after a patch that does not fit: {_telling(call.said)}"
    if report.rejects and not any(call.program == "patch" for call in calls):
        yield f"it goes on after a patch that does not fit: {_list(report.rejects)}"
    if _EXCEPTION.search(report.output):
        yield f"it goes on after an exception: {_last_line(report.output.rpartition('Traceback')[2])}"
    applied = [call for call in calls if call.program == "git apply"]
    checked = [call for call in applied if not call.reverse]
    there = any(call.reverse and not call.failed for call in applied) or all(call.already for call in checked)
    if checked and all(call.failed for call in checked) and not there and not report.changed:
        yield f"it goes on without its patch, which does not fit: {_telling(checked[-1].said)}"


def _judge_nothing(version: str, report: Report) -> Attempt:
    """Tell a script that finds its change upstream from one that finds no place for it, by what it says."""
    patches = [call for call in report.calls if call.program in {"patch", "git apply"}]
    if patches and all(call.already or (call.reverse and not call.failed) for call in patches):
        return Attempt(version, "nothing", "its patch is there already")
    lines = [line.strip() for line in report.output.splitlines() if line.strip()]
    for line in lines:
        if _GAVE_UP.search(line) and (not _CONTENT.search(line) or _UNSURE.search(line)):
            return Attempt(version, "fails", f"it changes nothing and says: {_short(line)}")
    said = next((line for line in lines if _CONTENT.search(line)), lines[-1] if lines else "")
    return Attempt(version, "nothing", _short(said))


def _telling(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = (line for line in lines if re.search(r"FAILED|error:|can't find|No file|Assuming", line))
    return _short(next(telling, lines[-1] if lines else "it says nothing"))


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return _short(lines[-1]) if lines else "it says nothing"


def _list(items: Iterable[str]) -> str:
    words = list(items)
    return _short(", ".join(words[:3])) + (f" and {len(words) - 3} more" if len(words) > 3 else "")  # noqa: PLR2004


def _short(text: str) -> str:
    shown = clean(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
