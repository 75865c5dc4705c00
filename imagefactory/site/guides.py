"""The advice of docs/serving.md as data: which configuration, what to do when something is wrong, exit codes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from imagefactory.site.markdown_tables import plain, table_below


@dataclass(frozen=True)
class Choice:
    """What to use in a situation."""

    situation: str
    use: str
    because: str

    @property
    def turboquant(self) -> bool:
        """Whether it recommends to compress the KV cache."""
        return "turboquant" in self.use.lower()


@dataclass(frozen=True)
class Symptom:
    """A symptom, and what to do about it; both in Markdown."""

    symptom: str
    remedy: str


@dataclass(frozen=True)
class ExitCode:
    """An exit code of an image."""

    code: str
    meaning: str


@dataclass(frozen=True)
class Guides:
    """What the documentation advises."""

    choices: tuple[Choice, ...]
    troubles: tuple[Symptom, ...]
    exit_codes: tuple[ExitCode, ...]


def read_guides(root: Path) -> Guides:
    """Read the tables of docs/serving.md; a table that is not there leaves its list empty."""
    path = root / "docs" / "serving.md"
    text = path.read_text("utf-8") if path.is_file() else ""
    return Guides(
        tuple(Choice(*map(plain, row[:3])) for row in _rows(text, "Which configuration?", 3)),
        tuple(Symptom(*row[:2]) for row in _rows(text, "When something is wrong", 2)),
        tuple(ExitCode(*map(plain, row[:2])) for row in _rows(text, "Exit codes", 2)),
    )


def _rows(text: str, heading: str, columns: int) -> list[tuple[str, ...]]:
    return [row for row in table_below(text, heading) if len(row) >= columns]
