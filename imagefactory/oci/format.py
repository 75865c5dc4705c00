"""Every constant that affects the bytes of a layer. Changing one requires a new LAYER_FORMAT.

The number is part of every layer key, so images of different formats never mix, and the tests have golden digests for
each format.
"""

from typing import Final

LAYER_FORMAT: Final = 3
MTIME: Final = 315619200
"""1980-01-02: constant, so that images of different days share layers; not before 1980, where zip tools fail."""
SPLICE_FROM: Final = 64 * 1024  # a file of at least this size is copied as the deflate stream in its wheel
COMPRESSION_LEVEL: Final = 1
"""libdeflate's level. Level 6 would make an image of 4 GB about 20 MB smaller, and its assembly a tenth slower."""
MEMBER_LIMIT: Final = 1024 * 1024
"""The most bytes that are compressed as one gzip member: limits memory and fixes the boundaries."""
BIG_WHEEL: Final = 20_000_000  # a wheel of at least this size gets its own layer
MAX_LAYERS: Final = 60  # engines stack at most 125; the rest is for images that are based on ours
VENV: Final = "opt/venv"  # the environment of every image, on every arch
CREATED: Final = "1980-01-02T00:00:00Z"
