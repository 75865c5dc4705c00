"""vLLM, the first server."""

from __future__ import annotations

from typing import Any, Final

from imagefactory.project.matrix import Arch
from imagefactory.project.served_model import Drafter
from imagefactory.project.server_names import VLLM
from imagefactory.project.server_versions import ServerVersion
from imagefactory.project.servers.server import Server
from imagefactory.project.servers.vllm_settings import SCHEMA


class VllmServer(Server):
    """vLLM, which has distributions of their own for machines without a GPU."""

    def distribution_on(self, arch: Arch) -> str:
        """Return the distribution to install on an arch, which matrix.yaml names."""
        return arch.distribution

    def model_document(self, drafter: Drafter, version: ServerVersion) -> dict[str, Any]:
        """Return the value of --speculative-config, without a revision."""
        config: dict[str, Any] = {
            "method": drafter.method,
            "model": drafter.repo,
            "num_speculative_tokens": drafter.tokens,
        }
        # The key exists since vLLM 0.21.0.
        if drafter.attention_backend and version.within(">=0.21.0.dev0"):
            config["attention_backend"] = drafter.attention_backend
        return {"speculative_config": config | drafter.config}

    def needs_cuda_13(self, version: ServerVersion) -> bool:
        """Whether the wheels of a version are made for CUDA 13, as they are since 0.20."""
        return version.within(">=0.20.0.dev0")


SERVER: Final = VllmServer(
    name=VLLM,
    distribution="vllm",
    settings=SCHEMA,
    tensor_parallel="-tp",
    cache="VLLM_CACHE_ROOT",
    recipes=("eugr", "sparkrun"),
    kernel_wheels=("flashinfer*",),
    kernel_files=("vllm/*", "flashinfer*/*"),
)
