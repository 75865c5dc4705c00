"""SGLang, the second server."""

from __future__ import annotations

from typing import Final

from imagefactory.servers.server import Server

SERVER: Final = Server(name="sglang", distribution="sglang")
