"""Locates changes in files, and applies them.

Every change is first converted to spans of the original text. So the spans of several mods can be compared before
anything is applied, and the order of applying them does not matter.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class Written:
    """A part of the current text, and the mod that wrote it."""

    mod: str
    start: int
    end: int


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
    _refuse_own_overlaps(mod, variant, spans)
    return spans


def apply_spans(text: str, spans: Iterable[Span]) -> str:
    """Replace the spans, from last to first, so that offsets stay valid."""
    for span in reversed(_in_order(spans)):
        text = text[: span.start] + span.text + text[span.end :]
    return text


def refuse_overlaps(spans: Iterable[Span]) -> None:
    for one, other in combinations(sorted(spans, key=lambda span: (span.path, span.lines, span.mod)), 2):
        if one.mod != other.mod and one.path == other.path and _overlap(one.lines, other.lines):
            raise _conflict(one.path, (one.mod, one.lines), (other.mod, other.lines))


def refuse_trespass(
    spans: Iterable[Span], texts: Texts, written: Mapping[str, Sequence[Written]], allowed: set[str]
) -> None:
    """Refuse a mod that relies on lines of a mod that it does not require."""
    for span in spans:
        for piece in written.get(span.path, ()):
            lines = _lines_of(texts[span.path] or "", piece.start, piece.end)
            if piece.mod not in allowed and _overlap(span.lines, lines):
                raise _conflict(span.path, (piece.mod, lines), (span.mod, span.lines))


def moved(written: Sequence[Written], spans: Iterable[Span]) -> list[Written]:
    """Return the parts that mods wrote, after spans are applied: the old ones, shifted, and the new ones."""
    spans = _in_order(spans)

    def now(offset: int) -> int:
        return offset + sum(len(span.text) - (span.end - span.start) for span in spans if span.end <= offset)

    result = [Written(piece.mod, now(piece.start), max(now(piece.start), now(piece.end))) for piece in written]
    shift = 0
    for span in spans:
        start = span.start + shift
        result.append(Written(span.mod, start, start + len(span.text)))
        shift += len(span.text) - (span.end - span.start)
    return result


@dataclass(frozen=True)
class _Place:
    mod: Mod
    label: str
    where: str
    texts: Texts

    def text(self, path: str) -> str:
        text = self.texts.get(path)
        if text is None:
            raise ModError(
                "mod-file",
                f"{path}, which the mod {self.label} changes, does not exist in this version.",
                where=self.where,
                why="A mod can only change an existing file.",
                fix="Add a variant for this version, or `not_needed`.",
            )
        return text


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
    relied_on = _lines_of(text, start, end)
    if change.before is not None:
        end = start
    elif change.after is not None:
        start = end
    new = change.before or change.after or change.replace or ""
    return Span(place.mod.name, change.edit, start, end, new, relied_on)


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


def _locate_patch(place: _Place, change: Patch) -> Iterator[Span]:
    try:
        hunks = parse_diff(place.mod.read(change.patch).decode())
    except ValueError as error:
        raise _patch_error(place, change, f"It is not a valid diff: {error}.") from None
    touched = {hunk.path for hunk in hunks}
    for path in sorted(touched - set(change.files)):
        raise _patch_error(place, change, f"It touches {path}, which `files` does not list.")
    for path in sorted(set(change.files) - touched):
        raise _patch_error(place, change, f"It does not touch {path}, which `files` lists.")
    for hunk in hunks:
        if hunk.line == 0:
            yield _locate_new(place, hunk.path, "".join(hunk.new))
        else:
            yield _locate_hunk(place, change, hunk)


def _locate_hunk(place: _Place, change: Patch, hunk: Hunk) -> Span:
    lines = split_lines(place.text(hunk.path))
    old, expected = list(hunk.old), hunk.line - 1
    candidates = range(max(0, expected - change.offset), expected + change.offset + 1)
    found = [at for at in candidates if lines[at : at + len(old)] == old]  # there is no fuzz
    if expected not in found and len(found) != 1:
        within = f", nor in exactly one place within {change.offset} lines" if change.offset else ""
        why = f"The hunk for {hunk.path}:{hunk.line} does not fit there{within}: {_excerpt(''.join(old))}"
        raise _patch_error(place, change, why)
    at = expected if expected in found else found[0]
    start = sum(map(len, lines[:at]))
    end = start + sum(map(len, hunk.old))
    return Span(place.mod.name, hunk.path, start, end, "".join(hunk.new), (at + 1, at + len(hunk.old)))


def _refuse_own_overlaps(mod: Mod, variant: Variant, spans: Sequence[Span]) -> None:
    """Refuse two changes of a mod at the same place: the result would depend on their order."""
    for one, other in combinations(sorted(spans, key=lambda span: (span.path, span.start, span.end)), 2):
        if one.path == other.path and (other.start < one.end or other.start == one.start):
            raise ModError(
                "mod-conflict",
                f"Two changes of the mod {mod.label(variant)} are at the same place.",
                where=mod.where_in(variant, "changes"),
                why=f"Both change {one.path}:{other.lines[0]}, in no particular order.",
                fix="Merge them into one change.",
            )


def _conflict(path: str, one: tuple[str, tuple[int, int]], other: tuple[str, tuple[int, int]]) -> ModError:
    return ModError(
        "mod-conflict",
        f"The mods {one[0]} and {other[0]} touch the same lines.",
        where=f"{path}:{max(one[1][0], other[1][0])}",
        why=f"{one[0]} relies on lines {one[1][0]}-{one[1][1]}, {other[0]} on lines {other[1][0]}-{other[1][1]}.",
        fix="Let one of them require the other, or declare `conflicts`.",
    )


def _patch_error(place: _Place, change: Patch, why: str) -> ModError:
    return ModError(
        "patch-misfit",
        f"The diff {change.patch} of the mod {place.label} does not apply.",
        where=place.where,
        why=why,
        fix="Create a diff for this version; fuzz is not allowed, an offset only if declared.",
    )


def _in_order(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.start, span.end, span.mod))


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _lines_of(text: str, start: int, end: int) -> tuple[int, int]:
    return _line(text, start), _line(text, max(start, end - 1))


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
