"""Locates changes in files, and applies them.

Every change is first converted to spans of the original text. So the spans of several mods can be compared before
anything is applied, and the order of applying them does not matter.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations

from images.shipped.errors import ModError
from images.shipped.mods.diffs import Hunk, parse_diff, split_lines
from images.shipped.mods.manifest import Edit, Mod, Patch, Variant

Texts = Mapping[str, str | None]  # the text of each file; None if it is missing

_SHOWN, _SEARCHED = 100, 20_000  # characters of a line, and lines of a file, that errors look at


@dataclass(frozen=True)
class Span:
    """A part of a file, by character offsets, and its replacement."""

    mod: str
    path: str
    start: int
    end: int
    text: str
    lines: tuple[int, int]  # the first and last line that the mod relies on; no other mod may touch them


def locate(mod: Mod, variant: Variant, texts: Texts) -> list[Span]:
    spans: list[Span] = []
    for index, change in enumerate(variant.changes):
        place = _Place(mod, mod.label(variant), mod.where_in(variant, "changes", index), texts)
        if isinstance(change, Edit):
            spans.append(_locate_edit(place, change))
        elif isinstance(change, Patch):
            spans += _locate_patch(place, change)
        else:
            spans.append(_locate_new(place, change.add, mod.read(change.source).decode()))
    return spans


@dataclass(frozen=True)
class _Place:
    """A change of a mod: where it is written, and the files of the tree."""

    mod: Mod
    label: str
    where: str
    texts: Texts

    def text(self, path: str) -> str:
        text = self.texts.get(path)
        if text is None:
            raise ModError(
                "mod-file",
                f"The mod {self.label} changes {path}, which does not exist in this version.",
                where=self.where,
                why="A mod can only change an existing file.",
                fix="Add a variant for this version, or `not_needed`.",
            )
        return text


def _locate_new(place: _Place, path: str, text: str) -> Span:
    if place.texts.get(path) is not None:
        raise ModError(
            "mod-file",
            f"The mod {place.label} adds {path}, which already exists.",
            where=place.where,
            why="Overwriting it would lose its content.",
            fix="Use edits, or another name.",
        )
    return Span(place.mod.name, path, 0, 0, text, (0, 0))


def _locate_edit(place: _Place, change: Edit) -> Span:
    text = place.text(change.edit)
    # Overlapping occurrences count too: they are just as ambiguous.
    found = [match.start() for match in re.finditer(f"(?={re.escape(change.anchor)})", text)]
    if len(found) != 1:
        lines = ", ".join(str(_line(text, start)) for start in found[:5])
        raise ModError(
            "anchor-misfit",
            f"An anchor of the mod {place.label} occurs {_times(len(found))} in {change.edit}.",
            where=place.where,
            why=f"It must occur exactly once{f', but is on lines {lines}' if found else ''}."
            f" The anchor: {_excerpt(change.anchor)}.{'' if found else _near(change.anchor, text)}",
            fix="Make the anchor longer."
            if found
            else f"Correct the anchor (`./inv mods.source {change.edit}` shows the file), "
            "or add a variant for this version.",
        )
    start, end = found[0], found[0] + len(change.anchor)
    relied_on = _line(text, start), _line(text, max(start, end - 1))
    if change.before is not None:
        end = start
    elif change.after is not None:
        start = end
    new = change.before or change.after or change.replace or ""
    return Span(place.mod.name, change.edit, start, end, new, relied_on)


def _locate_patch(place: _Place, change: Patch) -> Iterator[Span]:
    try:
        hunks = parse_diff(place.mod.read(change.patch).decode())
    except ValueError as error:
        raise _patch_error(place, change, f"It is not a valid diff: {error}.") from None
    touched, listed = sorted({hunk.path for hunk in hunks}), sorted(change.files)
    if touched != listed:
        why = f"It touches {', '.join(touched) or 'nothing'}, but `files` lists {', '.join(listed)}."
        raise _patch_error(place, change, why)
    for hunk in hunks:
        if hunk.line == 0:
            yield _locate_new(place, hunk.path, "".join(hunk.new))
        else:
            yield _locate_hunk(place, change, hunk)


def _locate_hunk(place: _Place, change: Patch, hunk: Hunk) -> Span:
    lines, at, count = split_lines(place.text(hunk.path)), hunk.line - 1, len(hunk.old)
    if lines[at : at + count] != list(hunk.old):  # there is no fuzz, and no offset
        why = f"The hunk for {hunk.path}:{hunk.line} does not fit there: {_excerpt(''.join(hunk.old))}"
        raise _patch_error(place, change, why)
    start = sum(map(len, lines[:at]))
    end = start + sum(map(len, hunk.old))
    return Span(place.mod.name, hunk.path, start, end, "".join(hunk.new), (hunk.line, at + count))


def _patch_error(place: _Place, change: Patch, why: str) -> ModError:
    return ModError(
        "patch-misfit",
        f"The diff {change.patch} of the mod {place.label} does not apply.",
        where=place.where,
        why=why,
        fix="Create a diff for this version; every line must fit at its number.",
    )


def apply_spans(text: str, spans: Iterable[Span]) -> str:
    """Replace the spans, from last to first, so that offsets stay valid."""
    for span in sorted(spans, key=lambda span: (span.start, span.end, span.mod), reverse=True):
        text = text[: span.start] + span.text + text[span.end :]
    return text


def refuse_overlaps(spans: Iterable[Span]) -> None:
    """Refuse two mods on the same lines, and two changes of a mod at the same place: their order would decide."""
    for one, other in combinations(sorted(spans, key=lambda span: (span.path, span.start, span.end, span.mod)), 2):
        if one.path != other.path:
            continue
        own = one.mod == other.mod
        if own and (other.start < one.end or other.start == one.start):
            what = f"Two changes of the mod {one.mod} are at the same place."
        elif not own and one.lines[0] <= other.lines[1] and other.lines[0] <= one.lines[1]:
            what = f"The mods {one.mod} and {other.mod} touch the same lines."
        else:
            continue
        lines = [f"{span.mod} relies on lines {span.lines[0]}-{span.lines[1]}" for span in (one, other)]
        raise ModError(
            "mod-conflict",
            what,
            where=f"{one.path}:{max(one.lines[0], other.lines[0])}",
            why=f"{', '.join(lines)}.",
            fix="Merge them into one change." if own else "Leave one of them out, or merge them into one mod.",
        )


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _near(anchor: str, text: str) -> str:
    """Say what a file has in the place of an anchor that it lacks."""
    if times := text.count(anchor.removesuffix("\n")):
        return f" Without its line end it occurs {_times(times)}; `|-` in YAML leaves the line end out."
    lines = text.split("\n")
    wrong = next((line for line in anchor.split("\n") if line not in lines), None)
    if wrong is None:
        return " The file has its lines, but not in this order."
    # The comparison is slow for long texts.
    nearest = get_close_matches(wrong[:_SHOWN], [line[:_SHOWN] for line in lines[:_SEARCHED]], 1)
    if not nearest:
        return f" No line of the file is like {_excerpt(wrong)}."
    number = next(number for number, line in enumerate(lines, 1) if line[:_SHOWN] == nearest[0])
    return f" The file has no line {_excerpt(wrong)}; line {number} is the nearest: {_excerpt(lines[number - 1])}."


def _excerpt(text: str) -> str:
    """Show the first line of a text with its line end, if it has one."""
    text = text.strip("\n") + "\n" * text.endswith("\n")
    first, end, rest = text.partition("\n")
    shown = f"{first[:_SHOWN]}{'…' if len(first) > _SHOWN else end}"
    return f"{shown!r}{' …' if rest else ''}"
