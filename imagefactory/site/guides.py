"""The advice in data/advice.yaml, which docs/serving.md and the site show; texts are Markdown."""

from __future__ import annotations

from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup
from pydantic import Field

from imagefactory.project.data import DATA, load_data
from imagefactory.project.locks.files import Frozen

MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
for _part in ("link_open", "link_close"):  # links lead to other documents; the site shows their text alone
    MARKDOWN.add_render_rule(_part, lambda *_: "")


class Choice(Frozen):
    """What to use in a situation."""

    situation: str
    use: str
    because: str
    setting: str = ""  # what to add to the command
    command: str = ""  # what tells which is better


class Symptom(Frozen):
    """A symptom, and what to do about it."""

    symptom: str
    remedy: str


class Task(Frozen):
    """Something that people want to do, and how; `words` are others for it."""

    task: str
    how: str
    words: str = ""


class Guides(Frozen):
    """What the documentation advises."""

    choices: tuple[Choice, ...] = ()
    tasks: tuple[Task, ...] = ()
    troubles: tuple[Symptom, ...] = ()
    exit_codes: dict[int, str] = Field(default={})


def read_guides(root: Path) -> Guides:
    """Read the advice of a checkout; without the file there is none."""
    path = root / DATA / "advice.yaml"
    return load_data(root, path.name, Guides) if path.is_file() else Guides()


def inline(text: str) -> Markup:
    """Return a line of Markdown as HTML."""
    return Markup(MARKDOWN.renderInline(text))  # noqa: S704 - it escapes HTML


def plain(text: str) -> str:
    """Return a line of Markdown without its markup, for search and JSON."""
    return inline(text).striptags()


def table_rows(text: str, columns: int) -> list[list[str]]:
    """Return the rows of a table in Markdown, without its head."""
    cells = [token.content for token in MARKDOWN.parse(text) if token.type == "inline"]
    # The first row is the head.
    return [cells[start : start + columns] for start in range(columns, len(cells), columns)]
