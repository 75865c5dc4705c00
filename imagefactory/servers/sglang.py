"""SGLang, the second server."""

from __future__ import annotations

from typing import Final

from imagefactory.servers.server import Server

SERVER: Final = Server(
    name="sglang",
    distribution="sglang",
    # sgl-flash-mla has code for data centre chips only, and SGLang does not choose it elsewhere.
    kernel_wheels=("sglang-kernel", "sgl-*", "flashinfer*"),
    kernel_files=("sgl_kernel/*", "deep_ep/*", "deep_gemm/*", "flash_mla/*", "flashinfer*/*"),
)
