"""The colours of plots, light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Theme:
    """The colours of a version."""

    name: str
    paper: str
    ink: str
    grid: str
    series: tuple[str, ...]
    """Okabe and Ito's colours, which people with any colour vision can tell apart, and their lightness differs."""


THEMES: Final = (
    Theme(
        "light",
        "#ffffff",
        "#1f2328",
        "#d0d7de",
        ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    ),
    Theme(
        "dark",
        "#0d1117",
        "#e6edf3",
        "#30363d",
        ("#56b4e9", "#e69f00", "#4dd2a5", "#e3a6c8", "#7aa7d9", "#f0e442"),
    ),
)
