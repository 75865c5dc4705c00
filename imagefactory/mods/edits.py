"""Edits: where a change goes, found exactly, and what the text becomes.

Every change is first turned into spans of the untouched text. Spans of several mods can then be compared, before
anything is applied, and applied in any order with the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from imagefactory.errors import AnchorError, ModConflictError, ModFileError, PatchError
from imagefactory.mods.manifest import Change, Edit, Mod, NewFile, Patch

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Span:
    """A piece of a file (by character offsets) and the text that takes its place."""

    mod: str
    path: str
    start: int
    end: int
    text: str
    reserved: tuple[int, int]
    """The lines (first, last) that the mod relies on; nobody else may touch them."""
    is_new: bool = False


def locate(mod: Mod, change: Change, where: str, read: dict[str, str | None]) -> Iterator[Span]:
    """Find where a change goes in files as they are; `read` has the text of each, None when it is missing."""
    if isinstance(change, Edit):
        yield _locate_edit(mod, change, where, _text_of(change.edit, where, read))
    elif isinstance(change, Patch):
        yield from _locate_patch(mod, change, where, read)
    else:
        yield _locate_new(mod, change, where, read)


def apply_spans(text: str, spans: Iterable[Span]) -> str:
    """Put the new text in place, from the end to the beginning, so that offsets stay true."""
    for span in sorted(spans, key=lambda span: (span.start, span.end, span.mod), reverse=True):
        text = text[: span.start] + span.text + text[span.end :]
    return text


def refuse_overlaps(spans: Iterable[Span]) -> None:
    """Make sure that no two mods rely on or change the same lines."""
    by_path: dict[str, list[Span]] = {}
    for span in spans:
        by_path.setdefault(span.path, []).append(span)
    for path, group in by_path.items():
        ordered = sorted(group, key=lambda span: (span.reserved, span.mod))
        for one, other in zip(ordered, ordered[1:], strict=False):
            if one.mod != other.mod and one.reserved[1] >= other.reserved[0]:
                raise ModConflictError(
                    f"The mods {one.mod} and {other.mod} touch the same lines.",
                    where=f"{path}:{other.reserved[0]}",
                    why=f"{one.mod} relies on lines {one.reserved[0]}-{one.reserved[1]}, "
                    f"{other.mod} on lines {other.reserved[0]}-{other.reserved[1]}.",
                    fix="Let one require the other and build on its text, or say `conflicts` in one of them.",
                )


def _locate_edit(mod: Mod, change: Edit, where: str, text: str) -> Span:
    found = [match.start() for match in re.finditer(re.escape(change.anchor), text)]
    if len(found) != 1:
        lines = ", ".join(str(_line(text, start)) for start in found[:5])
        raise AnchorError(
            f"An anchor of the mod {mod.name} occurs {len(found)} times in {change.edit}.",
            where=where,
            why=f"It must occur exactly once. {f'It stands on lines {lines}.' if found else ''}"
            f" The anchor: {_excerpt(change.anchor)}",
            fix="Make the anchor longer."
            if found
            else "The file changed: give this version a variant of its own.",
        )
    start, end = found[0], found[0] + len(change.anchor)
    lines_of = (_line(text, start), _line(text, max(start, end - 1)))
    if change.replace is not None:
        return Span(mod.name, change.edit, start, end, change.replace, lines_of)
    if change.before is not None:
        return Span(mod.name, change.edit, start, start, change.before, lines_of)
    return Span(mod.name, change.edit, end, end, change.after or "", lines_of)


def _locate_new(mod: Mod, change: NewFile, where: str, read: dict[str, str | None]) -> Span:
    if read.get(change.add) is not None:
        raise ModFileError(
            f"The mod {mod.name} adds {change.add}, which is there already.",
            where=where,
            why="Overwriting a file would lose what it holds.",
            fix="Change the file with edits, or choose another name.",
        )
    return Span(mod.name, change.add, 0, 0, mod.read(change.source).decode(), (0, 0), is_new=True)


def _locate_patch(mod: Mod, change: Patch, where: str, read: dict[str, str | None]) -> Iterator[Span]:
    touched: set[str] = set()
    for path, number, old, new in _hunks(mod, change, where):
        touched.add(path)
        if path not in change.files:
            raise _patch_error(mod, change, where, f"It touches {path}, which `files` does not declare.")
        text = _text_of(path, where, read)
        lines = text.splitlines(keepends=True)
        at = _fit(lines, old, number - 1, change.offset)
        if at is None:
            raise _patch_error(
                mod,
                change,
                where,
                f"The hunk for {path} line {number} does not fit there"
                f"{f', nor within {change.offset} lines' if change.offset else ''}: {_excerpt(''.join(old))}",
            )
        start = sum(map(len, lines[:at]))
        end = start + sum(map(len, lines[at : at + len(old)]))
        yield Span(mod.name, path, start, end, "".join(new), (at + 1, at + max(len(old), 1)))
    if touched != set(change.files):
        missing = ", ".join(sorted(set(change.files) - touched))
        raise _patch_error(mod, change, where, f"It declares {missing} but does not touch it.")


def _fit(lines: list[str], old: list[str], expected: int, offset: int) -> int | None:
    """Find the one place where a hunk's old lines stand; no fuzz, and an offset only where it is declared."""
    candidates = sorted(
        range(max(0, expected - offset), expected + offset + 1), key=lambda at: abs(at - expected)
    )
    found = [at for at in candidates if lines[at : at + len(old)] == old]
    if not found:
        return None
    return found[0] if found[0] == expected or len(found) == 1 else None


def _hunks(mod: Mod, change: Patch, where: str) -> Iterator[tuple[str, int, list[str], list[str]]]:
    """Read a unified diff: path, first line, old lines, new lines."""
    path = ""
    old: list[str] = []
    new: list[str] = []
    number, old_left, new_left = 0, 0, 0
    for line in mod.read(change.patch).decode().splitlines(keepends=True):
        if old_left or new_left:
            kind, body = line[:1], line[1:]
            if kind in (" ", "-", "\n"):
                old.append(body if kind != "\n" else "\n")
                old_left -= 1
            if kind in (" ", "+", "\n"):
                new.append(body if kind != "\n" else "\n")
                new_left -= 1
            if kind not in (" ", "-", "+", "\n", "\\") or old_left < 0 or new_left < 0:
                raise _patch_error(mod, change, where, f"It is not a unified diff at {line.strip()[:60]!r}.")
            if not old_left and not new_left:
                yield path, number, old, new
        elif line.startswith("+++ "):
            path = line[4:].split("\t")[0].strip()
            path = path.removeprefix("b/")
        elif match := _HUNK.match(line):
            number = int(match[1])
            old_left = int(match[2] or 1)
            new_left = int(match[4] or 1)
            old, new = [], []
    if old_left or new_left:
        raise _patch_error(mod, change, where, "Its last hunk is cut off.")


def _text_of(path: str, where: str, read: dict[str, str | None]) -> str:
    text = read.get(path)
    if text is None:
        raise ModFileError(
            f"{path} does not exist in this version.",
            where=where,
            why="A mod can only change a file that is there.",
            fix="The file moved or is gone: give this version a variant of its own, or say `not_needed`.",
        )
    return text


def _patch_error(mod: Mod, change: Patch, where: str, why: str) -> PatchError:
    return PatchError(
        f"The diff {change.patch} of the mod {mod.name} does not apply.",
        where=where,
        why=why,
        fix="Make a diff for this version; fuzz is not accepted, an offset only when it is declared.",
    )


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _excerpt(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else text
    return f"{first[:70]!r}"
