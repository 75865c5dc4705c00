"""Draws layers and starts in SVG; classes alone style them on pages, as the site's policy demands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from imagefactory.store.progress import size

WIDTH: Final = 1000
HEIGHT: Final = 56
LABELLED: Final = 40
"""The narrowest part with its name in it."""
LETTER: Final = 5.8  # the mean width of a letter
COLOURS: Final = {
    "base": "#6f7c8b",
    "wheel": "#4a7d33",
    "bytecode": "#8f7029",
    "serve": "#2d7280",
    "mod": "#a34b26",
    "model": "#6d4b9c",
    "other": "#666",
}
"""Of a file; they are legible on light and dark pages alike."""
PHONE: Final = 400
"""The width of a file: a phone shows it without making its letters smaller."""
_PLURALS: Final = {"wheel": "wheels", "mod": "mods", "serve": "serve program"}
_ROW: Final = 44  # the height of a start, with its label
_RIGHT: Final = 44  # room for its seconds
_KEY: Final = 100  # the width of an entry of the key
LEAST: Final = 2.0
"""The narrowest part; layers of a few bytes would vanish otherwise."""


@dataclass(frozen=True)
class PictureLayer:
    """A layer in the picture; the size is None if it was never built."""

    kind: str
    name: str
    bytes: int | None


def layer_picture(parts: Sequence[PictureLayer]) -> Markup:
    """Draw layers in their order, as wide as they are large, for a page that styles them."""
    return Markup(
        '<svg class="layers" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">{}</svg>'
    ).format(WIDTH, HEIGHT, _summary(parts), _drawn(parts))


def layer_file(parts: Sequence[PictureLayer]) -> str:
    """Draw layers as a file of its own, with its colours in it, and the sum of each kind below."""
    style = "text{font:12px system-ui,sans-serif;fill:#7d8590}rect{stroke:none}"
    style += "".join(f".{kind}{{fill:{colour}}}" for kind, colour in COLOURS.items())
    box = Markup('<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>')
    text = Markup('<text x="{}" y="{}">{}</text>')
    left, drawn = 0.0, []
    sums: dict[str, int] = {}
    for part, width in zip(parts, _widths([part.bytes or 0 for part in parts], PHONE), strict=True):
        kind, about = kind_class(part.kind), f"{part.kind} {part.name}: {size(part.bytes or 0)}"
        drawn.append(box.format(kind, left, 0, max(width - 0.5, 0.5), 40, about))
        sums[kind] = sums.get(kind, 0) + (part.bytes or 0)
        left += width
    for number, (kind, total) in enumerate(sums.items()):
        x, y = PHONE // 2 * (number % 2), 52 + 20 * (number // 2)
        drawn += [
            box.format(kind, x, y, 12, 12, kind),
            text.format(x + 18, y + 10, f"{_PLURALS.get(kind, kind)} {size(total)}"),
        ]
    rows = (len(sums) + 1) // 2
    return _file(52 + 20 * rows, _summary(parts), style, Markup("").join(drawn))


def _file(height: int, label: str, style: str, drawn: Markup) -> str:
    # A page that is wider than a phone shows it a bit larger, not as wide as itself.
    head = Markup('<svg xmlns="http://www.w3.org/2000/svg" width="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    return f"{head.format(PHONE * 1.5, PHONE, height, label)}<style>{style}</style>{drawn}</svg>\n"


def _summary(parts: Sequence[PictureLayer]) -> str:
    return f"{len(parts)} layers, {size(sum(part.bytes or 0 for part in parts))} in all"


def _drawn(parts: Sequence[PictureLayer]) -> Markup:
    left = 0.0
    drawn = []
    for part, width in zip(parts, _widths([part.bytes or 0 for part in parts]), strict=True):
        name = part.name.removeprefix("nvidia-")
        fits = width >= LABELLED and len(name) * LETTER < width - 8
        label = Markup('<text x="{:.1f}" y="33">{}</text>').format(left + width / 2, name) if fits else ""
        drawn.append(
            Markup(
                '<g class="layer {}"><title>{}</title><rect x="{:.1f}" y="1" width="{:.1f}" height="54"/>{}</g>'
            ).format(
                kind_class(part.kind),
                f"{part.kind} {part.name}: {size(part.bytes or 0)}",
                left,
                max(width - 1, 1),
                label,
            )
        )
        left += width
    return Markup("").join(drawn)


def kind_class(kind: str) -> str:
    """Return the class of a kind of layers, for the picture and its key."""
    return "wheel" if kind.endswith(("bundle", "wheel")) else kind if kind.isalpha() else "other"


def outcome_class(word: str) -> str:
    """Return the class of a word that says how something is: good, bad, care or quiet."""
    return {
        **dict.fromkeys(("passed", "current", "native", "applies", "promote"), "good"),
        **dict.fromkeys(("failed", "fails", "conflict", "not covered", "rollback", "critical", "high"), "bad"),
        **dict.fromkeys(("not-run", "jit", "update waiting", "no record", "not-audited", "medium"), "care"),
    }.get(word, "quiet")


def _widths(sizes: Sequence[int], width: float = WIDTH) -> list[float]:
    """Share the width by size, giving every part at least a line."""
    total = sum(sizes)
    if not total:
        return [width / len(sizes)] * len(sizes)
    raw = [max(LEAST, width * size / total) for size in sizes]
    # Widened parts made the sum larger than the width.
    return [part * width / sum(raw) for part in raw]


STEPS: Final = {
    "checks": "#666",
    "imports": "#6f7c8b",
    "engine": "#2d7280",
    "weights": "#4a7d33",
    "compile": "#a34b26",
    "graphs": "#8f7029",
    "server": "#6d4b9c",
}
"""The steps of a start, in their order."""


def timeline_file(starts: Mapping[str, Mapping[str, float]]) -> str:
    """Draw starts below each other as a file of its own: seconds by step, as long as they take."""
    box = Markup('<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="20"><title>{}: {:.1f} s</title></rect>')
    text = Markup('<text class="{}" x="{:.1f}" y="{}">{}</text>')
    scale = (PHONE - _RIGHT) / (max((sum(steps.values()) for steps in starts.values()), default=0) or 1)
    drawn = []
    for number, (label, steps) in enumerate(starts.items()):
        top, left = number * _ROW + 18, 0.0
        drawn.append(text.format("name", left, top - 5, label))
        for name in (step for step in STEPS if step in steps):
            width = scale * steps[name]
            drawn.append(box.format(name, left, top, width, name, steps[name]))
            if len(name) * LETTER < width - 6:
                drawn.append(text.format("in", left + width / 2, top + 14, name))
            left += width
        drawn.append(text.format("total", left + 6, top + 15, f"{sum(steps.values()):.0f} s"))
    below, across = len(starts) * _ROW + 10, PHONE // _KEY
    for number, name in enumerate(STEPS):
        key = Markup('<rect class="{}" x="{}" y="{}" width="12" height="12"/>')
        x, y = _KEY * (number % across), below + 20 * (number // across)
        drawn.append(key.format(name, x, y))
        drawn.append(text.format("key", x + 17, y + 10, name))
    style = "text{font:12px system-ui,sans-serif;fill:#7d8590}.in{font-size:11px;fill:#fff;text-anchor:middle}"
    style += "".join(f".{name}{{fill:{colour}}}" for name, colour in STEPS.items())
    height = below + 20 * -(-len(STEPS) // across)
    return _file(height, f"{len(starts)} starts by step, in seconds", style, Markup("").join(drawn))
