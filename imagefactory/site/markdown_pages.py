"""Turns pages into Markdown, for programs and for people who read files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

_EMPTY: Final = {"br", "hr", "img", "input", "link", "meta"}
"""Elements that have no end."""
_LEFT_OUT: Final = {"script", "form", "svg", "button", "nav", "hr", "img", "input"}
_LEFT_OUT_CLASSES: Final = {"filter", "cap", "unseen"}
_BLOCKS: Final = ("p", "section", "figure", "figcaption", "details", "dl", "ul", "ol", "div", "caption", "noscript")
_AROUND: Final = {
    **dict.fromkeys(_BLOCKS, ("\n\n", "\n\n")),
    **dict.fromkeys(("strong", "b"), ("**", "**")),
    "em": ("*", "*"),
    "dd": (": ", ""),
    "br": (" ", ""),
    "summary": ("\n\n**", "**\n\n"),
}
"""What stands before and after what is in an element."""
_LINES: Final = {"li": "\n- {}", "dt": "\n- {}"} | {f"h{level}": f"\n\n{'#' * level} {{}}\n\n" for level in range(1, 7)}
"""Elements that are a line."""
_SPECIAL: Final = re.compile(r"([\\`*\[\]])")
_PAGE: Final = re.compile(r"^(?!\w+:)([^#?]*)\.html(?=$|#)")
"""A page of the site, in a link; what scripts read has no Markdown."""


@dataclass
class _Element:
    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[_Element | str] = field(default_factory=list)

    def every(self, tag: str) -> list[_Element]:
        """Return the elements of a kind in it, at any depth."""
        inside = [child for child in self.children if isinstance(child, _Element)]
        return [found for child in inside for found in ([child] if child.tag == tag else child.every(tag))]

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class _Tree(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [_Element("")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = _Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _EMPTY:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag == self.open[-1].tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def to_markdown(page: str) -> str:
    """Return the content of a page as Markdown; links to pages of the site lead to their Markdown."""
    tree = _Tree()
    tree.feed(page)
    [main] = tree.open[0].every("main")
    lines = (line.rstrip() for line in _inside(main).splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _inside(element: _Element) -> str:
    return "".join(_plain(child) if isinstance(child, str) else _markdown(child) for child in element.children)


def _plain(text: str) -> str:
    words = re.sub(r"\s+", " ", text).replace("&", "&amp;").replace("<", "&lt;")
    return _SPECIAL.sub(r"\\\1", words)


def _markdown(element: _Element) -> str:
    tag = element.tag
    if tag in _LEFT_OUT or element.attributes.get("class") in _LEFT_OUT_CLASSES:
        return ""
    if tag in _WHOLE:
        return _WHOLE[tag](element)
    inside = _inside(element)
    if tag in _LINES:
        return _LINES[tag].format(_words(inside))
    before, after = _AROUND.get(tag, ("", ""))
    return f"{before}{inside}{after}"


def _words(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _link(element: _Element) -> str:
    address = _PAGE.sub(r"\1.md", element.attributes.get("href", ""))
    return f"[{_words(_inside(element))}]({address})"


def _fence(text: str) -> str:
    return "`" * (1 + max(map(len, re.findall("`+", text)), default=0))


def _code(element: _Element) -> str:
    text = element.text
    edge = " " if "`" in text else ""
    return f"{_fence(text)}{edge}{text}{edge}{_fence(text)}"


def _block(element: _Element) -> str:
    fence = max("```", _fence(element.text))
    return f"\n\n{fence}\n{element.text.strip()}\n{fence}\n\n"


def _table(table: _Element) -> str:
    rows = []
    for row in table.every("tr"):
        cells = [cell for cell in row.children if isinstance(cell, _Element)]
        rows.append([_words(_cell(cell)).replace("|", r"\|") for cell in cells])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(["\n", lines[0], "|---" * len(rows[0]) + "|", *lines[1:], "\n"])


def _cell(cell: _Element) -> str:
    """Return a cell; the title of a column that can be sorted is a button."""
    return " ".join(_plain(one.text) for one in cell.every("button")) or _inside(cell)


_WHOLE: Final = {"a": _link, "code": _code, "pre": _block, "table": _table}
"""Elements that are more than what is in them."""
