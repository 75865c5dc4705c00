"""Turns two versions of a file into exact edits, and proposes checks that hold after a change and not before."""

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import islice

from images.shipped.mods.checks import Definition, failing
from images.shipped.mods.diffs import split_lines
from images.shipped.mods.manifest import UNPARSABLE, Check, Edit

_TELLING = 12  # how many characters an anchor needs, apart from spaces
_WIDEST = 80  # how many lines an anchor may take from around a change
# Of equal lines on the two sides, which the matcher's time grows with, apart from lines that are everywhere.
_MOST_PAIRS = 200_000
MOST_EDITS, LARGEST = 200, 1024**2  # the most changes of a file, and its most characters


@dataclass(frozen=True)
class Block:
    """Lines of a file, and the lines that take their place, by index."""

    start: int
    end: int
    new_start: int
    new_end: int


def blocks(old: list[str], new: list[str]) -> list[Block]:
    """List what differs between two lists of lines; all between their equal ends, if comparing it would take long."""
    start = _equal_ahead(old, new)
    same = _equal_ahead(old[start:][::-1], new[start:][::-1])
    left, right = old[start : len(old) - same], new[start : len(new) - same]
    matcher = SequenceMatcher(None, left, right)
    positions: dict[str, list[int]] = matcher.b2j  # type: ignore[attr-defined] # typeshed lacks it
    if sum(len(positions.get(line, ())) for line in left) > _MOST_PAIRS:
        return [Block(start, len(old) - same, start, len(new) - same)]
    return [Block(*(start + at for at in place)) for tag, *place in matcher.get_opcodes() if tag != "equal"]


def _equal_ahead(old: list[str], new: list[str]) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((at for at, (old_line, new_line) in pairs if old_line != new_line), min(len(old), len(new)))


def exact_edits(path: str, before: str, after: str) -> list[Edit]:
    """Return the edits that turn a text into another; none of them touches what another one changes."""
    old, new = split_lines(before), split_lines(after)
    changed = blocks(old, new)
    if len(changed) > MOST_EDITS:
        raise ValueError(f"it changes {path} in {len(changed)} places, and {MOST_EDITS} are the most")
    anchored: list[tuple[Block, tuple[int, int]]] = []
    for block in changed:
        anchored.append((block, _anchor(before, old, block)))
        # Edits whose anchors meet could change the same place: they become one.
        while len(anchored) > 1 and anchored[-1][1][0] <= anchored[-2][1][1]:
            (upper, _), (lower, _) = anchored[-2:]
            both = Block(upper.start, lower.end, upper.new_start, lower.new_end)
            anchored[-2:] = [(both, _anchor(before, old, both))]
    return [_edit(path, old, new, block, anchor) for block, anchor in anchored]


def _anchor(text: str, old: list[str], block: Block) -> tuple[int, int]:
    """Find the lines that identify a block: its own, or as many around it as make them occur once."""
    anchor = block.start, block.end
    # An insertion has no lines of its own; it follows its anchor, except at the top of the file.
    insertion = block.start == block.end
    wider = _growing(len(old), *anchor, upwards=insertion and block.start > 0)
    for around in islice(wider, _WIDEST):
        if anchor[0] < anchor[1] and _telling(text, "".join(old[slice(*anchor)])):
            break
        anchor = around
    return anchor


def _growing(count: int, start: int, end: int, *, upwards: bool) -> Iterator[tuple[int, int]]:
    while start > 0 or end < count:
        if start > 0:
            start -= 1
            yield start, end
        if end < count and (not upwards or start == 0):
            end += 1
            yield start, end


def _telling(text: str, anchor: str) -> bool:
    first = text.find(anchor)
    once = first >= 0 and text.find(anchor, first + 1) < 0
    return once and len("".join(anchor.split())) >= _TELLING


def _edit(path: str, old: list[str], new: list[str], block: Block, anchor: tuple[int, int]) -> Edit:
    text = "".join(new[block.new_start : block.new_end])
    around = "".join(old[slice(*anchor)])
    if block.start == block.end == anchor[1]:
        return Edit(edit=path, anchor=around, after=text)
    if block.start == block.end == anchor[0]:
        return Edit(edit=path, anchor=around, before=text)
    above, below = "".join(old[anchor[0] : block.start]), "".join(old[block.end : anchor[1]])
    return Edit(edit=path, anchor=around, replace=above + text + below)


MOST = 4  # how many checks a file gets
_SHORTEST, _LONGEST = 8, 160
_NEIGHBOURS = 4
_WORD = re.compile(r"[A-Za-z]{3}")


def propose(path: str, before: str | None, after: str) -> list[Check]:
    """Return checks that fail on a file before a change and hold after it; fewer if the change is small."""
    old, new = split_lines(before or ""), split_lines(after)
    checks: dict[tuple[str | None, bool], Check] = {}
    changed = blocks(old, new)
    for block in changed[: 2 * MOST]:
        added = _claims(path, after, new, range(block.new_start, block.new_end), "contains")
        removed = _claims(path, before or "", old, range(block.start, block.end), "lacks")
        for check in (*added, *removed):
            key = (check.function or check.class_, check.lacks is None)
            if key not in checks and failing(check, after) is None and failing(check, before) is not None:
                checks[key] = check
                break
    # Where the lines are elsewhere in the file too, their neighbours tell them apart.
    if before is not None and not checks:
        for block in changed[:MOST]:
            nearby = _nearby(path, after, new, range(block.new_start, block.new_end))
            holding = (check for check in nearby if failing(check, after) is None and failing(check, before))
            checks |= {(check.contains, True): check for check in islice(holding, 1)}
    return list(checks.values())[:MOST]


def _nearby(path: str, text: str, lines: list[str], changed: range) -> Iterator[Check]:
    """Yield claims about changed lines with more and more of their neighbours."""
    for more in range(1, _NEIGHBOURS + 1):
        part = "".join(lines[max(0, changed.start - more) : changed.stop + more]).strip("\n")
        if len(part) <= _LONGEST * (more + 1):
            place = _definition(path, text, changed.start + 1)
            yield Check.model_validate({"file": path, "contains": part, **place})


def _claims(path: str, text: str, lines: list[str], changed: range, verb: str) -> Iterator[Check]:
    """Yield claims about changed lines, those that say most first, each in its definition if it has one."""
    ranked = sorted(changed, key=lambda index: (-_weight(lines[index]), index))
    for index in ranked[: 2 * MOST]:
        line = lines[index].strip()
        if not _weight(lines[index]):
            continue
        place = _definition(path, text, index + 1)
        yield Check.model_validate({"file": path, verb: line, **place})
        if place:
            yield Check.model_validate({"file": path, verb: line})


def _weight(line: str) -> int:
    """Rate how well a line identifies a change; 0 if it does not."""
    text = line.strip()
    if not _SHORTEST <= len(text) <= _LONGEST or not _WORD.search(text) or not text.isprintable():
        return 0
    return 1 if text.startswith("#") else len(text)


def _definition(path: str, text: str, line: int) -> Mapping[str, str]:
    """Name the innermost function or class around a line, as checks do."""
    if not path.endswith(".py"):
        return {}
    names: list[str] = []
    inner: ast.AST | None = _parsed(text)
    kind = ""
    while inner is not None:
        children = _definitions(inner)
        inner = next((child for child in children if child.lineno <= line <= (child.end_lineno or 0)), None)
        if inner is not None:
            names.append(inner.name)
            kind = "class" if isinstance(inner, ast.ClassDef) else "function"
    return {kind: ".".join(names)} if names else {}


@lru_cache(maxsize=2)
def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except UNPARSABLE:
        return None


def _definitions(node: ast.AST) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        elif not isinstance(child, ast.Lambda):
            yield from _definitions(child)
