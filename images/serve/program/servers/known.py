"""Finds the server of an image."""

from ..image import Image
from .server import Server
from .sglang import SERVER as SGLANG
from .vllm import SERVER as VLLM


def server_of(image: Image) -> Server:
    return {"vllm": VLLM, "sglang": SGLANG}[image.server]
