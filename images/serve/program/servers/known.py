"""Lists the servers, and finds that of an image."""

from __future__ import annotations

from ..image import Image
from .server import Server
from .sglang.server import SERVER as SGLANG
from .vllm.server import SERVER as VLLM

SERVERS = {server.name: server for server in (VLLM, SGLANG)}


def server_of(image: Image) -> Server:
    """Return the server of an image."""
    return SERVERS[image.server]
