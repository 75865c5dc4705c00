"""Carries a change over to a newer text: three ways, and only where nothing near it has changed."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import Match, SequenceMatcher

from imagefactory.mods.exact_edits import Block, blocks
from images.shipped.mods.diffs import split_lines

_CONTEXT = 1
"""How many lines around a change have to be as they were."""


@dataclass(frozen=True)
class MergeConflict:
    """A place where a change and the newer text disagree."""

    line: int
    """In the text that the change was made for."""
    old: str
    """The lines there, with their neighbours."""
    ours: str
    """What the mod makes of them."""
    theirs: str
    """What the newer text has there."""


@dataclass(frozen=True)
class Merged:
    """The newer text with the changes; those that it has already are not counted."""

    text: str
    carried: int
    conflicts: tuple[MergeConflict, ...]


def merge(base: str, ours: str, theirs: str) -> Merged:
    """Make the changes from `base` to `ours` in `theirs`."""
    old, new, target = split_lines(base), split_lines(ours), split_lines(theirs)
    kept = [
        run for run in SequenceMatcher(None, old, target, autojunk=False).get_matching_blocks() if run.size
    ]
    edits: list[tuple[int, int, list[str]]] = []
    conflicts: list[MergeConflict] = []
    for block in blocks(old, new):
        wanted = new[block.new_start : block.new_end]
        start, end = max(block.start - _CONTEXT, 0), min(block.end + _CONTEXT, len(old))
        run = next((run for run in kept if run.a <= start and end <= run.a + run.size), None)
        if run is not None:
            shift = run.b - run.a
            edits.append((block.start + shift, block.end + shift, wanted))
            continue
        place = _between(kept, block, len(target))
        found = target[place[0] : place[1]]
        if _has(found, wanted) or (not wanted and not _has(found, old[block.start : block.end])):
            continue
        conflicts.append(
            MergeConflict(
                block.start + 1,
                "".join(old[start:end]),
                "".join([*old[start : block.start], *wanted, *old[block.end : end]]),
                "".join(found),
            )
        )
    for start, end, wanted in reversed(edits):
        target[start:end] = wanted
    return Merged("".join(target), len(edits), tuple(conflicts))


def _between(kept: list[Match], block: Block, length: int) -> tuple[int, int]:
    """Return the lines of the newer text around a block: from the last line that is kept to the next one."""
    above = [run for run in kept if run.a < block.start]
    below = [run for run in kept if run.a + run.size > block.end]
    start = above[-1].b + min(above[-1].size, block.start - above[-1].a) - 1 if above else 0
    end = below[0].b + max(block.end - below[0].a, 0) + 1 if below else length
    return max(start, 0), max(min(end, length), start)


def _has(lines: list[str], wanted: list[str]) -> bool:
    stripped = [line.strip() for line in lines]
    looked = [line.strip() for line in wanted]
    return any(stripped[at : at + len(looked)] == looked for at in range(len(stripped) - len(looked) + 1))
