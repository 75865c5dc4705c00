"""What an image knows about its model's size and its GPU's driver, in the form that the serve program reads."""

from __future__ import annotations

from imagefactory.matrix.cells import Cell, KernelOrigin, intended_kernels
from imagefactory.matrix.matrix import Matrix

GB = 1_000_000_000
CUDA_13_DRIVER = "580"
"""The first driver branch for CUDA 13, and for GB10 whatever the CUDA version."""
CUDA_12_DRIVER = "525"
"""CUDA 12 runs on any driver from its first branch on."""


def driver_minimum(matrix: Matrix, cell: Cell) -> str:
    """Return which NVIDIA driver an image needs; empty for images without CUDA."""
    arch = matrix.archs[cell.arch]
    if arch.capability is None:
        return ""
    # vLLM's wheels and our compiles are CUDA 13 from 0.20 on; 12.1 is first known to the driver of that time.
    if matrix.vllm[cell.vllm].within(">=0.20.0.dev0") or arch.capability == "12.1":
        return CUDA_13_DRIVER
    return CUDA_12_DRIVER


def memory_facts(matrix: Matrix, cell: Cell) -> dict[str, object]:
    """Return the sizes that matrix.yaml states for a model, in bytes; empty when it states none."""
    memory = getattr(matrix.models[cell.model], "memory", None)
    if memory is None:
        return {}
    return {
        "weights": round(memory.weights_gb * GB),
        "download": round((memory.download_gb or memory.weights_gb) * GB),
        "drafter": round(memory.drafter_gb * GB),
        "kv_per_token": memory.kv_bytes_per_token,
        "kv_per_sequence": memory.kv_bytes_per_sequence,
        "context": memory.context,
        "hybrid": memory.hybrid,
    }


def image_facts(matrix: Matrix, cell: Cell, kernels: KernelOrigin | None) -> dict[str, object]:
    """Collect what the checks compare a machine with."""
    version, arch = matrix.vllm[cell.vllm], matrix.archs[cell.arch]
    facts: dict[str, object] = {
        "target": str(cell),
        "vllm": str(version.version),
        "arch": cell.arch,
        "capability": arch.capability or "",
        "driver": driver_minimum(matrix, cell),
        "kernels": kernels or intended_kernels(matrix, cell),
        "weights": matrix.models[cell.model].weights,
    }
    memory = memory_facts(matrix, cell)
    return facts | ({"memory": memory} if memory else {})
