"""The servers that an image may have. What is particular to one lives in its folder, behind a `Server`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BrokenImageError

if TYPE_CHECKING:
    from ..image import Image
    from .server import Server

KNOWN = ("vllm", "sglang")
"""The folders; each has its server as SERVER in server.py."""


def of(image: Image) -> Server:
    """Return the server of an image, without importing the others."""
    from importlib import import_module  # noqa: PLC0415 - the modules below import ours

    if image.server not in KNOWN:
        raise BrokenImageError(
            f"model.json names the server {image.server!r}, which this program does not know.",
            remedy="Pull the image again.",
        )
    server: Server = import_module(f".{image.server}.server", __name__).SERVER
    return server
