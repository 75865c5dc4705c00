"""Reads the tables of the project's Markdown documents, and turns their inline markup into HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from markupsafe import Markup, escape

_CELLS: Final = re.compile(r"(?<!\\)\|")
_INLINE: Final = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<strong>[^*]+)\*\*|\*(?P<em>[^*\s][^*]*)\*|\[(?P<text>[^\]]+)\]\([^)]*\)"
)


def table_below(text: str, heading: str) -> list[tuple[str, ...]]:
    """Return the rows of the first table below a heading, without its head; empty if there is none."""
    found = re.search(rf"^#+ {re.escape(heading)}$", text, re.MULTILINE)
    return rows_of(text[found.end() :]) if found else []


def rows_of(text: str) -> list[tuple[str, ...]]:
    """Return the rows of the first table in a text, without its head."""
    rows: list[tuple[str, ...]] = []
    for line in text.splitlines():
        if line.startswith("|"):
            rows.append(tuple(_cells(line)))
        elif rows:
            break
        elif line.startswith("#"):
            return []
    return rows[2:]


def _cells(line: str) -> Iterator[str]:
    return (cell.strip().replace(r"\|", "|") for cell in _CELLS.split(line.strip().strip("|")))


def inline(text: str) -> Markup:
    """Return a line of Markdown as HTML: code, emphasis, and links by their text alone."""
    out: list[Markup] = []
    position = 0
    for found in _INLINE.finditer(text):
        out.append(escape(text[position : found.start()]))
        position = found.end()
        if found["text"] is not None:
            out.append(inline(found["text"]))
        else:
            tag = str(found.lastgroup)
            out.append(Markup("<{0}>{1}</{0}>").format(Markup(tag), found[tag]))  # noqa: S704 - our own tags
    out.append(escape(text[position:]))
    return Markup("").join(out)


def plain(text: str) -> str:
    """Return a line of Markdown without its markup, for search and JSON."""
    return inline(text).striptags()
