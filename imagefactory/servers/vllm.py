"""vLLM, the first server."""

from __future__ import annotations

from typing import Final

from imagefactory.matrix.matrix import Arch
from imagefactory.matrix.server_names import VLLM
from imagefactory.servers.server import Server


class VllmServer(Server):
    """vLLM, which has distributions of their own for machines without a GPU."""

    def distribution_on(self, arch: Arch) -> str:
        """Return the distribution to install on an arch, which matrix.yaml names."""
        return arch.distribution


SERVER: Final = VllmServer(
    name=VLLM,
    distribution="vllm",
    kernel_wheels=("flashinfer*",),
    kernel_files=("vllm/*", "flashinfer*/*"),
)
