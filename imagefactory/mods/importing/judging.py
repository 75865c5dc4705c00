"""Judges what a replayed script did: a change, nothing, or something that a mod cannot do."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

from imagefactory.mods.importing.attempts import Attempt, Distribution, in_image, settle
from imagefactory.mods.importing.replays import ProgramCall, Report

_KINDS = {"l": "a link", "p": "a pipe", "s": "a socket", "c": "a device", "b": "a device"}
_EXCEPTION = re.compile(r"^Traceback \(most recent call last\):$", re.MULTILINE)
_GAVE_UP = re.compile(
    r"not applicable|killed|can't|cannot|could ?n[o']t|fail|not found|no such|warning|error|unsupported|skipping",
    re.IGNORECASE,
)
_CONTENT = re.compile(
    r"already|previously applied|upstream|not needed|no longer|up to date|includes", re.IGNORECASE
)
_UNSURE = re.compile(r"may (already|have)|already \w+ or |upstream\?", re.IGNORECASE)
_SHOWN = 200


def judge(version: str, report: Report, distributions: list[Distribution]) -> Attempt:
    """Decide what a replay on a version came to."""
    addresses = tuple(
        dict.fromkeys(call.address for call in report.calls if call.address and not call.supplied)
    )
    fault = next(_faults(report, addresses), None)
    if fault is not None:
        return Attempt(version, "fails", fault, addresses=addresses)
    contents = {path: base64.b64decode(data) for path, data in report.changed.items()}
    contents |= {in_image(path): base64.b64decode(data) for path, data in report.workspace.items()}
    notes = (f"it also changes the permissions of {_list(report.modes)}",) if report.modes else ()
    attempt = settle(version, contents, distributions, notes=notes)
    if attempt.outcome != "nothing":
        return attempt
    return _judge_nothing(version, report)


def _faults(report: Report, addresses: tuple[str, ...]) -> Iterator[str]:
    """Yield why a replay is a failure, whatever the script's exit status, the most telling first."""
    calls = report.calls
    if addresses:
        yield f"it fetches {_list(addresses)}"
    wanted = dict.fromkeys(item for call in calls for item in call.wants)
    if wanted:
        yield f"it installs {_list(wanted)}, which images get from their locks alone"
    yield from _of_the_end(report)
    yield from _of_the_tree(report)
    yield from _swallowed(report, calls)


def _of_the_end(report: Report) -> Iterator[str]:
    """Yield what is wrong with how the script ended."""
    if report.full:
        yield f"it fills the space that it gets ({_list(report.full)})"
    if report.status is None:
        yield "it does not end in time"
    if report.status:
        yield f"it ends with code {report.status}: {_last_line(report.output)}"
    if report.left_running:
        yield f"it starts a process that outlives it ({_short(report.left_running[0])})"


def _of_the_tree(report: Report) -> Iterator[str]:
    """Yield what the script did to files that no mod can do."""
    if report.deleted:
        yield f"it deletes {_list(report.deleted)}"
    if report.odd:
        path, kind = next(iter(report.odd.items()))
        yield f"it makes {_KINDS.get(kind, 'something that is no file')} of {path}"
    if report.outside:
        yield f"it writes outside of the packages: {_list(report.outside)}"
    if report.too_large:
        yield f"it changes {_list(report.too_large)}, which no mod can"


def _swallowed(report: Report, calls: list[ProgramCall]) -> Iterator[str]:
    """Yield failures that the script went on after."""
    for call in calls:
        if (
            call.failed
            and not (call.probe or call.already)
            and (call.program == "patch" or not report.changed)
        ):
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
    sorry = next((line for line in lines if _gives_up(line)), None)
    if sorry is not None:
        return Attempt(version, "fails", f"it changes nothing and says: {_short(sorry)}")
    said = next((line for line in lines if _CONTENT.search(line)), lines[-1] if lines else "")
    return Attempt(version, "nothing", _short(said))


def _gives_up(line: str) -> bool:
    return bool(_GAVE_UP.search(line)) and (not _CONTENT.search(line) or bool(_UNSURE.search(line)))


def _telling(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = (line for line in lines if re.search(r"FAILED|error:|can't find|No file|Assuming", line))
    return _short(next(telling, lines[-1] if lines else "it says nothing"))


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return _short(lines[-1]) if lines else "it says nothing"


def _list(items: object) -> str:
    words = [str(item) for item in items] if hasattr(items, "__iter__") else [str(items)]
    return _short(", ".join(words[:3])) + (f" and {len(words) - 3} more" if len(words) > 3 else "")  # noqa: PLR2004


def _short(text: str) -> str:
    clean = "".join(char if char.isprintable() else " " for char in text)
    return clean if len(clean) <= _SHOWN else f"{clean[:_SHOWN]}…"
