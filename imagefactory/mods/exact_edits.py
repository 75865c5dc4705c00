"""Turns two versions of a file into exact edits: anchors that occur once, and what takes their place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from images.shipped.mods.diffs import split_lines
from images.shipped.mods.manifest import Edit

_TELLING = 12
"""How many characters an anchor needs, apart from spaces."""


@dataclass(frozen=True)
class Block:
    """Lines of a file, and the lines that take their place, by index."""

    start: int
    end: int
    new_start: int
    new_end: int


def blocks(old: list[str], new: list[str]) -> list[Block]:
    """List what differs between two lists of lines."""
    # Most files differ in a few lines: without their common ends, the comparison is fast.
    limit = min(len(old), len(new))
    head = next((index for index in range(limit) if old[index] != new[index]), limit)
    tail = next((index for index in range(limit - head) if old[-1 - index] != new[-1 - index]), limit - head)
    matcher = SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
    return [
        Block(i1 + head, i2 + head, j1 + head, j2 + head)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    ]


def exact_edits(path: str, before: str, after: str) -> list[Edit]:
    """Return the edits that turn a text into another; none of them touches what another one changes."""
    old, new = split_lines(before), split_lines(after)
    found = blocks(old, new)
    while True:
        anchored = [(block, _anchor(before, old, block)) for block in found]
        clash = next(
            (index for index, pair in enumerate(pairwise(anchored)) if _touch(*pair)),
            None,
        )
        if clash is None:
            return [_edit(path, old, new, block, anchor) for block, anchor in anchored]
        one, other = found[clash], found[clash + 1]
        found[clash : clash + 2] = [Block(one.start, other.end, one.new_start, other.new_end)]


def _anchor(text: str, old: list[str], block: Block) -> tuple[int, int]:
    """Find the lines that identify a block: its own, or as many around it as make them occur once."""
    start, end = block.start, block.end
    # An insertion has no lines of its own; it follows its anchor, except at the top of the file.
    grow = _growing(len(old), start, end, upwards=block.start == block.end and block.start > 0)
    if start == end:
        start, end = next(grow)
    while not _telling(text, "".join(old[start:end])):
        wider = next(grow, None)
        if wider is None:
            break
        start, end = wider
    return start, end


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


def _touch(one: tuple[Block, tuple[int, int]], other: tuple[Block, tuple[int, int]]) -> bool:
    """Whether the spans of two edits overlap or begin at the same place."""
    (_, end), (start, _) = _span(*one), _span(*other)
    return start < end or _span(*one)[0] == start


def _span(block: Block, anchor: tuple[int, int]) -> tuple[int, int]:
    """Return the lines that an edit replaces: an insertion's are none."""
    if block.start == block.end and block.start in anchor:
        return block.start, block.start
    return anchor


def _edit(path: str, old: list[str], new: list[str], block: Block, anchor: tuple[int, int]) -> Edit:
    text = "".join(new[block.new_start : block.new_end])
    around = "".join(old[slice(*anchor)])
    if block.start == block.end == anchor[1]:
        return Edit(edit=path, anchor=around, after=text)
    if block.start == block.end == anchor[0]:
        return Edit(edit=path, anchor=around, before=text)
    above, below = "".join(old[anchor[0] : block.start]), "".join(old[block.end : anchor[1]])
    return Edit(edit=path, anchor=around, replace=above + text + below)
