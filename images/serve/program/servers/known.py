"""Finds the server of an image."""

from ..image import Image
from .server import Server
from .sglang.server import SERVER as SGLANG
from .vllm.server import SERVER as VLLM


def server_of(image: Image) -> Server:
    return {"vllm": VLLM, "sglang": SGLANG}[image.server]
