"""Tries a change on one version: texts before and after, or why it cannot become a mod there.

Of unified diffs, every line has to match, wherever in the file it is; there is no fuzz.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from imagefactory.errors import ModError
from imagefactory.mods.authoring import FileChange, printable
from imagefactory.mods.exact_edits import LARGEST, MOST_EDITS
from imagefactory.mods.source_files import ReleaseSource
from images.shipped.mods.diffs import Hunk, parse_diff, split_lines
from images.shipped.mods.manifest import IMAGE_FILES, path_fault

Outcome = Literal["changes", "nothing", "fails", "untried"]
_COMPILED = re.compile(r"^(csrc/|cmake/|CMakeLists\.txt|setup\.py)|\.(cu|cuh|cpp|cc|c|h|hpp|cmake)$")
_FROM_GIT = re.compile(r"^(?=diff --git )", re.MULTILINE)
_PLAIN = re.compile(r"^(?=--- \S.*\n\+\+\+ .*\n@@ )", re.MULTILINE)
_PLACE = re.compile(r"^/?(?:.*/)?(?:dist|site)-packages/")  # in diffs that were made on an installed tree


@dataclass(frozen=True)
class Attempt:
    """What came of trying a change on one version of the matrix."""

    version: str
    outcome: Outcome
    why: str = ""  # why nothing came of it
    distribution: str = ""
    files: Mapping[str, FileChange] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what a reviewer should know

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", printable(self.why))
        object.__setattr__(self, "notes", tuple(map(printable, self.notes)))


def settle(
    version: str,
    texts: Mapping[str, str],
    distributions: list[ReleaseSource],
    notes: tuple[str, ...] = (),
) -> Attempt:
    """Turn new texts of files into an attempt; a path below IMAGE_FILES belongs to any distribution."""
    files: dict[str, FileChange] = {}
    owners: dict[str, list[str]] = {}
    for path, text in sorted(texts.items()):
        owner = next((release for release in distributions if release.may_hold(path)), None)
        change = _change(path, text, owner)
        if isinstance(change, str):
            return Attempt(version, "fails", change)
        if change.before != change.after:
            files[path] = change
            owners.setdefault(owner.distribution if owner is not None else "", []).append(path)
    named = [name for name in owners if name]
    if len(named) > 1:
        parts = "; ".join(f"{name}: {', '.join(owners[name][:3])}" for name in named)
        return Attempt(version, "fails", f"it changes several distributions, and a mod changes one ({parts})")
    if not files:
        return Attempt(version, "nothing", notes=notes)
    changed = named[0] if named else distributions[0].distribution
    return Attempt(version, "changes", distribution=changed, files=files, notes=notes)


def _change(path: str, after: str, owner: ReleaseSource | None) -> FileChange | str:
    """Return a file before and after, or why no mod can change it like that."""
    inside = path.removeprefix(IMAGE_FILES)
    fault = path_fault(inside)
    if fault is not None:
        return f"it brings {path}, which {fault}"
    if inside == path and owner is None:
        return f"it changes {path}, which is in no package that it may change"
    before = owner.read(path) if owner is not None else None
    if len(after) > LARGEST:
        return f"{path} would have more than {LARGEST} characters"
    if before == "" or not after:
        return f"{path} is empty, before or after: an edit needs text"
    return FileChange(path, before, after)


@dataclass(frozen=True)
class Section:
    """What a diff says about one file."""

    path: str
    hunks: tuple[Hunk, ...] = ()
    refused: str = ""  # why no mod can do that


def read_diffs(diffs: Mapping[str, str]) -> list[tuple[str, list[Section]]]:
    stack: list[tuple[str, list[Section]]] = []
    for name, text in diffs.items():
        # What comes before the first is a message.
        parts = re.split(_FROM_GIT if _FROM_GIT.search(text) else _PLAIN, text)
        sections = [section for part in parts if (section := _section(part)).path]
        if not sections:
            raise _no_diff(name, f"{name} is not a diff.", "It names no file to change.")
        stack.append((name, sections))
    count = sum(len(section.hunks) for _, sections in stack for section in sections)
    if count > MOST_EDITS:
        why = f"It has {count} hunks; {MOST_EDITS} are more than anybody reviews."
        raise _no_diff(", ".join(diffs), "The diff is too large for a mod.", why)
    return stack


def _no_diff(name: str, what: str, why: str) -> ModError:
    fix = "Export it again: `git diff --no-renames --full-index A..B`."
    return ModError("bad-import-source", printable(what), where=printable(name), why=printable(why), fix=fix)


def try_diffs(
    version: str,
    stack: Sequence[tuple[str, list[Section]]],
    distributions: list[ReleaseSource],
    *,
    leave_out: bool = True,
) -> Attempt:
    """Apply a stack of diffs to a version; one that is there already is passed over.

    Diffs of a repository may leave out files that images do not have, such as tests; one of installed files may not.
    """
    texts: dict[str, str] = {}
    notes: list[str] = []
    passed: list[str] = []
    for name, sections in stack:
        inside = [
            section
            for section in sections
            if not leave_out or any(release.may_hold(section.path) for release in distributions)
        ]
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
    return settle(version, texts, distributions, tuple(notes))


def _refused(name: str, inside: Sequence[Section], outside: Sequence[str]) -> str | None:
    compiled = [path for path in outside if _COMPILED.search(path)]
    if compiled:
        return f"{name} changes what is compiled: {', '.join(compiled[:3])}"
    if not inside:
        return f"{name} changes nothing that images have"
    refused = next((section for section in inside if section.refused), None)
    return f"{name} cannot change {refused.path}: {refused.refused}" if refused is not None else None


def _read(path: str, texts: Mapping[str, str], distributions: list[ReleaseSource]) -> str | None:
    if path in texts:
        return texts[path]
    return next((release.read(path) for release in distributions if path in release.names), None)


def _apply(
    name: str, sections: Sequence[Section], before: Mapping[str, str | None], texts: dict[str, str]
) -> str | None:
    """Apply the sections of a diff, all or none; return why they do not fit."""
    after: dict[str, str] = {}
    for section in sections:
        fitted = _replaced(before[section.path] or "", [(hunk.line, hunk.old, hunk.new) for hunk in section.hunks])
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
    if not old:
        return start if not lines else None
    if expected >= start and lines[expected : expected + len(old)] == old:
        return expected
    if not old[-1].endswith("\n"):
        last = len(lines) - len(old)
        return last if last >= start and lines[last:] == old else None
    # As texts, which are searched in linear time; the line feed ahead makes a match begin with a line.
    text, old_text = "\n" + "".join(lines[start:]), "\n" + "".join(old)
    at = text.find(old_text)
    once = at >= 0 and text.find(old_text, at + 1) < 0
    return start + text.count("\n", 0, at) if once else None


def _is_there(section: Section, text: str | None) -> bool:
    """Whether a file has the new lines of every hunk already."""
    if text is None:
        return False
    if any(hunk.line == 0 for hunk in section.hunks):
        return text == "".join(section.hunks[0].new)
    reverse = [(hunk.line, hunk.new, hunk.old) for hunk in section.hunks]
    return not isinstance(_replaced(text, reverse), int)


def _section(part: str) -> Section:
    named = re.match(r"diff --git (?:a/)?(\S+) ", part)
    path = _PLACE.sub("", named[1]) if named else ""
    try:
        hunks = parse_diff(part)
    except ValueError as error:
        return Section(path or "a file", refused=str(error))
    # Without hunks, it is a new, empty file, or the message of a commit.
    return Section(_PLACE.sub("", hunks[0].path) if hunks else path, tuple(hunks))
