"""SGLang, the second server."""

from __future__ import annotations

from typing import Final

from imagefactory.servers.server import Server
from imagefactory.servers.sglang_settings import REFUSED, SCHEMA

SERVER: Final = Server(
    name="sglang",
    distribution="sglang",
    settings=SCHEMA,
    refused=REFUSED,
    tensor_parallel="--tp-size",
    cache="SGLANG_CACHE_DIR",
)
