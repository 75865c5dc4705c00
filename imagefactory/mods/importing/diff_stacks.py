"""Tries unified diffs on a version: every line has to match, wherever in the file it is; there is no fuzz."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagefactory.errors import ModError
from imagefactory.mods.importing.attempts import Attempt, Distribution, settle
from images.shipped.mods.diffs import NOWHERE, Hunk, parse_diff, split_lines

_COMPILED = re.compile(r"^(csrc/|cmake/|CMakeLists\.txt|setup\.py)|\.(cu|cuh|cpp|cc|c|h|hpp|cmake)$")
_SECTION = re.compile(r"^diff --git |^--- (?=\S)")
_PLACE = re.compile(r"^/?(?:.*/)?(?:dist|site)-packages/")
_STRUCTURE = {
    "rename ": "renames",
    "copy ": "copies",
    "deleted file ": "deletes",
    "old mode ": "changes the permissions of",
    "GIT binary ": "has binary parts for",
    "Binary files ": "has binary parts for",
}


@dataclass(frozen=True)
class Section:
    """What a diff says about one file."""

    path: str
    hunks: tuple[Hunk, ...] = ()
    refused: str = ""
    """What it does to the file that no mod can."""


def read_diffs(diffs: Mapping[str, str]) -> list[tuple[str, list[Section]]]:
    """Parse a stack of diffs, by name and in order."""
    stack = [(name, [_section(name, part) for part in _parts(text)]) for name, text in diffs.items()]
    for name, sections in stack:
        if not any(section.path for section in sections):
            raise ModError(
                "bad-import-source",
                f"{name} is not a diff.",
                where=name,
                why="It names no file to change.",
                fix="Export it again: `git diff --no-renames --full-index A..B`.",
            )
    return [(name, [section for section in sections if section.path]) for name, sections in stack]


def try_diffs(
    version: str, stack: Sequence[tuple[str, list[Section]]], distributions: list[Distribution]
) -> Attempt:
    """Apply a stack of diffs to a version; one that is there already is passed over."""
    texts: dict[str, str | None] = {}
    notes: list[str] = []
    passed: list[str] = []
    for name, sections in stack:
        inside = [section for section in sections if any(one.may_hold(section.path) for one in distributions)]
        outside = [section.path for section in sections if section not in inside]
        if outside:
            notes.append(f"{name}: files that images do not have are left out ({', '.join(outside[:3])}…)")
        fault = _refused(name, inside, outside)
        if fault is None:
            try:
                before = {section.path: _read(section.path, texts, distributions) for section in inside}
            except ModError as error:
                return Attempt(version, "fails", f"{name}: {error.what}")
            fault = _apply(name, inside, before, texts)
            if fault is not None and all(_is_there(section, before[section.path]) for section in inside):
                passed.append(name)
                continue
        if fault is not None:
            return Attempt(version, "fails", fault)
    if len(passed) == len(stack):
        return Attempt(version, "nothing", f"{', '.join(passed)} is there already")
    notes += [f"{name} is in {version} already" for name in passed]
    contents = {path: text.encode() for path, text in texts.items() if text is not None}
    return settle(version, contents, distributions, notes=tuple(notes))


def _refused(name: str, inside: Sequence[Section], outside: Sequence[str]) -> str | None:
    """Return what a diff does that no mod can."""
    compiled = [path for path in outside if _COMPILED.search(path)]
    if compiled:
        return f"{name} changes what is compiled: {', '.join(compiled[:3])}"
    if not inside:
        return f"{name} changes nothing that images have"
    refused = next((section for section in inside if section.refused), None)
    return f"{name} {refused.refused} {refused.path}, which no mod can" if refused is not None else None


def _read(path: str, texts: Mapping[str, str | None], distributions: list[Distribution]) -> str | None:
    if path in texts:
        return texts[path]
    owner = next((one for one in distributions if path in one.paths), None)
    return owner.release.read(path) if owner is not None else None


def _apply(
    name: str, sections: Sequence[Section], before: Mapping[str, str | None], texts: dict[str, str | None]
) -> str | None:
    """Apply the sections of a diff, all or none; return why they do not fit."""
    after: dict[str, str] = {}
    for section in sections:
        text = before[section.path]
        for hunk in section.hunks:
            if (text is None) is not (hunk.line == 0):
                state = "does not exist" if text is None else "exists already"
                return f"{name} does not fit: {section.path} {state}"
        fitted = _replaced(text or "", [(hunk.line, hunk.old, hunk.new) for hunk in section.hunks])
        if isinstance(fitted, int):
            hunk = section.hunks[fitted]
            return f"{name} does not fit: the hunk for {section.path}:{hunk.line} matches no single place"
        after[section.path] = fitted
    texts |= after
    return None


def _replaced(text: str, hunks: Sequence[tuple[int, Sequence[str], Sequence[str]]]) -> str | int:
    """Replace the old lines of hunks, each below the one before; return the index of one that does not fit."""
    lines = split_lines(text)
    done: list[str] = []
    at = 0
    for index, (line, old, new) in enumerate(hunks):
        place = _fit(lines, list(old), line - 1, at)
        if place is None:
            return index
        done += [*lines[at:place], *new]
        at = place + len(old)
    return "".join([*done, *lines[at:]])


def _fit(lines: list[str], old: list[str], expected: int, start: int) -> int | None:
    """Find the place of old lines: where they are expected, or the only one there is."""
    if not old:
        return start if not lines else None
    if expected >= start and lines[expected : expected + len(old)] == old:
        return expected
    found = [
        at
        for at in range(start, len(lines) - len(old) + 1)
        if lines[at] == old[0] and lines[at : at + len(old)] == old
    ]
    return found[0] if len(found) == 1 else None


def _is_there(section: Section, text: str | None) -> bool:
    """Whether a file has the new lines of every hunk already."""
    if text is None:
        return False
    if any(hunk.line == 0 for hunk in section.hunks):
        return text == "".join(section.hunks[0].new)
    reverse = [(hunk.line, hunk.new, hunk.old) for hunk in section.hunks]
    return not isinstance(_replaced(text, reverse), int)


def _parts(text: str) -> Iterator[list[str]]:
    """Split a diff into the parts of its files; what comes before the first is a message."""
    part: list[str] = []
    in_hunk = (0, 0)
    for line in split_lines(text):
        old, new = in_hunk
        if old > 0 or new > 0:
            kind = line[:1]
            in_hunk = (old - (kind in " -\n"), new - (kind in " +\n"))
        elif _SECTION.match(line) and not (line.startswith("--- ") and _heads(part)):
            yield part
            part = []
        match = re.match(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", line) if in_hunk <= (0, 0) else None
        if match is not None:
            in_hunk = (int(match[1] or 1), int(match[2] or 1))
        part.append(line)
    yield part


def _heads(part: Sequence[str]) -> bool:
    """Whether a part is at the head of its file: a `diff` line, with no `---` yet."""
    return bool(part) and part[0].startswith("diff --git ") and not any(x.startswith("--- ") for x in part)


def _section(name: str, part: list[str]) -> Section:
    head = [line for line in part if not line.startswith((" ", "+ ", "- "))]
    structure = next(
        (verb for line in head for key, verb in _STRUCTURE.items() if line.startswith(key)), None
    )
    named = re.match(r"diff --git (?:a/)?(\S+) ", part[0]) if part else None
    if structure is not None:
        return Section(_inside(named[1] if named else "a file"), refused=structure)
    if not any(line.startswith("@@") for line in part):
        # A new, empty file, or the message of a commit.
        return Section(_inside(named[1]) if named else "")
    try:
        hunks = parse_diff("".join(part))
    except ValueError as error:
        raise ModError(
            "bad-import-source",
            f"{name} is not a diff that can be applied.",
            where=name,
            why=f"{error}.",
            fix="Export it again: `git diff --no-renames --full-index A..B`.",
        ) from None
    path = _inside(hunks[0].path)
    return Section(path, tuple(Hunk(path, hunk.line, hunk.old, hunk.new) for hunk in hunks))


def _inside(path: str) -> str:
    """Return a path below the packages, for diffs made on an installed tree."""
    return path if path == NOWHERE else _PLACE.sub("", path)
