"""Every constant that decides the bytes of a layer. Changing one means a new LAYER_FORMAT.

The number goes into every layer key, so images of different formats never mix, and the golden digests in the
tests are kept per format.
"""

from __future__ import annotations

from typing import Final

LAYER_FORMAT: Final = 2

MTIME: Final = 315619200
"""1980-01-02: a constant, or images of different days would share nothing; not before 1980, or zip tools fail."""

SPLICE_FROM: Final = 64 * 1024
"""A file at least this large is copied as the deflate stream that its wheel already holds."""

COMPRESSION_LEVEL: Final = 1
"""libdeflate's level for everything that is compressed here. Level 6 would make an image of 4 GB some 20 MB smaller,
and its assembly a tenth slower."""

MEMBER_LIMIT: Final = 1024 * 1024
"""Bytes that are compressed as one gzip member at most: bounds memory and fixes the boundaries."""

BIG_WHEEL: Final = 20_000_000
"""A wheel at least this large has a layer of its own."""

MAX_LAYERS: Final = 60
"""Engines stack 125 at most; the rest is for those who build on top of our images."""

VENV: Final = "opt/venv"
"""The one environment of every image, on every arch."""

CREATED: Final = "1980-01-02T00:00:00Z"
