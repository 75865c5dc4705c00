"""Proposes checks for a change: claims that hold after it, and did not before."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice

from imagefactory.mods.exact_edits import blocks
from images.shipped.mods.checks import Definition, failing
from images.shipped.mods.diffs import split_lines
from images.shipped.mods.manifest import UNPARSABLE, Check

MOST = 4
"""How many checks a file gets."""
_SHORTEST, _LONGEST = 8, 160
_NEIGHBOURS = 4
_WORD = re.compile(r"[A-Za-z]{3}")


def propose(path: str, before: str | None, after: str) -> list[Check]:
    """Return checks that fail on a file before a change and hold after it; fewer if the change is small."""
    old, new = split_lines(before or ""), split_lines(after)
    found: dict[tuple[str | None, bool], Check] = {}
    changed = list(blocks(old, new))
    for block in changed:
        added = range(block.new_start, block.new_end)
        removed = range(block.start, block.end)
        for check in (
            *_claims(path, after, new, added, "contains"),
            *_claims(path, before or "", old, removed, "lacks"),
        ):
            key = (check.function or check.class_, check.lacks is None)
            if key not in found and failing(check, after) is None and failing(check, before) is not None:
                found[key] = check
                break
    if (
        before is not None and not found
    ):  # the lines are elsewhere in the file too: their neighbours tell them apart
        for block in changed[:MOST]:
            nearby = _nearby(path, after, new, range(block.new_start, block.new_end))
            told = (check for check in nearby if failing(check, after) is None and failing(check, before))
            found |= {(check.contains, True): check for check in islice(told, 1)}
    return list(found.values())[:MOST]


def _nearby(path: str, text: str, lines: list[str], changed: range) -> Iterator[Check]:
    """Yield claims about changed lines with more and more of their neighbours."""
    for more in range(1, _NEIGHBOURS + 1):
        part = "".join(lines[max(0, changed.start - more) : changed.stop + more]).strip("\n")
        if len(part) <= _LONGEST * (more + 1):
            yield Check.model_validate(
                {"file": path, "contains": part, **_definition(path, text, changed.start + 1)}
            )


def _claims(path: str, text: str, lines: list[str], changed: range, verb: str) -> Iterator[Check]:
    """Yield claims about changed lines, those that say most first, each in its definition if it has one."""
    ranked = sorted(changed, key=lambda index: (-_weight(lines[index]), index))
    for index in ranked[:20]:
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
        inner = next((child for child in _definitions(inner) if _holds(child, line)), None)
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


def _holds(node: Definition, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _definitions(node: ast.AST) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        elif not isinstance(child, ast.Lambda):
            yield from _definitions(child)
