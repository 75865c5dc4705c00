"""Draws an image's layers as one bar in SVG; classes alone style it, as the site's policy demands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from imagefactory.store.sizes import size

WIDTH: Final = 1000
HEIGHT: Final = 56
LABELLED: Final = 40
"""The narrowest part with its name in it."""
LETTER: Final = 5.8
LEAST: Final = 2.0
"""The narrowest part; layers of a few bytes would vanish otherwise."""


@dataclass(frozen=True)
class PictureLayer:
    """A layer in the picture."""

    kind: str
    name: str
    bytes: int


def layer_picture(parts: Sequence[PictureLayer]) -> Markup:
    """Draw layers in their order, as wide as they are large."""
    widths = _widths([part.bytes for part in parts])
    left = 0.0
    drawn = []
    for part, width in zip(parts, widths, strict=True):
        title = f"{part.kind} {part.name}: {size(part.bytes)}"
        name = part.name.removeprefix("nvidia-")
        label = name if width >= LABELLED and len(name) * LETTER < width - 8 else ""
        text = (
            Markup('<text x="{:.1f}" y="33">{}</text>').format(left + width / 2, label)
            if label
            else Markup("")
        )
        drawn.append(
            Markup(
                '<g class="layer {}"><title>{}</title><rect x="{:.1f}" y="1" width="{:.1f}" height="54"/>{}</g>'
            ).format(kind_class(part.kind), title, left, max(width - 1, 1), text)
        )
        left += width
    summary = escape(f"{len(parts)} layers, {size(sum(part.bytes for part in parts))} in all")
    return Markup(
        '<svg class="layers" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">{}</svg>'
    ).format(WIDTH, HEIGHT, summary, Markup("").join(drawn))


def kind_class(kind: str) -> str:
    """Return the class of a kind of layers, for the picture and its key."""
    return "wheel" if kind.endswith(("bundle", "wheel")) else kind if kind.isalpha() else "other"


def _widths(sizes: Sequence[int]) -> list[float]:
    """Share the width by size, giving every part at least a line."""
    total = sum(sizes)
    if not total:
        return [WIDTH / len(sizes)] * len(sizes)
    raw = [max(LEAST, WIDTH * one / total) for one in sizes]
    return [one * WIDTH / sum(raw) for one in raw]
