"""Draws figures as bars in SVG: own results filled, published ones hollow, so that nobody mixes them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

WIDTH: Final = 760
ROW: Final = 26
LEFT: Final = 330
RIGHT: Final = 90
LONGEST: Final = 46


@dataclass(frozen=True)
class Bar:
    """A figure."""

    label: str
    value: float
    own: bool


def bars(figures: Sequence[Bar], unit: str) -> Markup:
    """Draw figures below each other, as long as they are large."""
    most = max((figure.value for figure in figures), default=0) or 1
    rows = []
    for number, figure in enumerate(figures):
        top = number * ROW
        length = max(1.0, (WIDTH - LEFT - RIGHT) * figure.value / most)
        label = figure.label if len(figure.label) <= LONGEST else f"{figure.label[: LONGEST - 1]}…"
        rows.append(
            Markup(
                '<g class="{}"><title>{}</title><text class="name" x="{}" y="{}">{}</text>'
                '<rect x="{}" y="{}" width="{:.1f}" height="14" rx="2"/>'
                '<text class="value" x="{:.1f}" y="{}">{:.1f}</text></g>'
            ).format(
                "own" if figure.own else "published",
                f"{figure.label}: {figure.value:.1f} {unit}",
                LEFT - 10,
                top + 17,
                label,
                LEFT,
                top + 6,
                length,
                LEFT + length + 8,
                top + 17,
                figure.value,
            )
        )
    height = max(1, len(figures)) * ROW + 4
    return Markup('<svg class="bars" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, f"{len(figures)} figures in {unit}", Markup("").join(rows)
    )
