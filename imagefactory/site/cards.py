"""Draws the pictures that messengers show beside a link: a title, lines below it, and how full a Spark's memory is."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import deflate
from PIL import Image, ImageDraw, ImageFont

SIZE: Final = (1200, 630)
PAPER, INK, SOFT, ACCENT, LINE = "#101310", "#e7ebe5", "#a3ada1", "#93d66f", "#2e352d"
_LEFT: Final = 80
_WIDE: Final = SIZE[0] - 2 * _LEFT


def card(site: str, title: str, lines: Sequence[str], share: float = 0) -> bytes:
    """Draw a card as PNG; `share` of a bar at its foot is filled. The same words give the same bytes on any machine."""
    picture = Image.new("RGB", SIZE, PAPER)
    draw = ImageDraw.Draw(picture)
    draw.text((_LEFT, 70), site, SOFT, _fitting(site, 34))
    draw.text((_LEFT, 140), title, INK, _fitting(title, 84))
    for number, line in enumerate(lines):
        draw.text((_LEFT, 280 + 62 * number), line, SOFT if number else ACCENT, _fitting(line, 42))
    draw.rounded_rectangle((_LEFT, 540, _LEFT + _WIDE, 566), 13, LINE)
    if share:
        draw.rounded_rectangle((_LEFT, 540, _LEFT + _WIDE * min(share, 1), 566), 13, ACCENT)
    return _png(picture)


def _fitting(text: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return the font in a size, or in a smaller one that lets the text fit."""
    font = ImageFont.load_default(size)
    return font if font.getlength(text) <= _WIDE else ImageFont.load_default(size * _WIDE / font.getlength(text))


def _png(picture: Image.Image) -> bytes:
    """Write PNG with our own deflate, whose output depends on no processor and no version of zlib."""
    width, rows = 3 * picture.width, picture.tobytes()
    raw = b"".join(b"\0" + rows[at : at + width] for at in range(0, len(rows), width))
    header = picture.width.to_bytes(4, "big") + picture.height.to_bytes(4, "big") + bytes((8, 2, 0, 0, 0))
    chunks = ((b"IHDR", header), (b"IDAT", bytes(deflate.zlib_compress(raw, 9))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big") for kind, data in chunks
    )
