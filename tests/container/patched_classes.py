"""Checks in a container that patched classes and grafted libraries do what their mods and compiles promise.

Which claims are checked depends on the mods in the image, and on whether its vLLM is grafted. It fakes a GPU platform,
which needs only the symbols of the driver (with_driver_stub.sh).
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import torch
from vllm import platforms
from vllm.platforms import cuda, interface

NOTES = Path("/usr/share/imagefactory/mods.json")
GRAFT = "a graft"


class PretendedGpu(cuda.NonNvmlCudaPlatform):  # type: ignore[misc]  # vLLM is in the container only
    """A CUDA platform with one GPU of a given capability."""

    capability = (12, 1)

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> Any:  # noqa: ARG003
        return interface.DeviceCapability(*cls.capability)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:  # noqa: ARG003
        return "a pretended GPU"

    @classmethod
    def device_count(cls) -> int:
        return 1


def pretend(major: int, minor: int) -> None:
    PretendedGpu.capability = (major, minor)


def mods() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTES.read_text("utf-8"))["mods"] if NOTES.exists() else []
    return found


def graft() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(distribution("vllm").read_text("imagefactory.json") or "{}")
    return found


def cutlass_is_avoided_on_12_1_and_only_there() -> None:
    from vllm.model_executor.kernels.linear.scaled_mm import cutlass  # noqa: PLC0415
    from vllm.model_executor.layers.quantization.utils import w8a8_utils  # noqa: PLC0415

    pretend(12, 1)
    assert platforms.current_platform.is_device_capability(121)
    assert not w8a8_utils.cutlass_fp8_supported()
    assert not w8a8_utils.cutlass_block_fp8_supported()
    assert not w8a8_utils.cutlass_group_gemm_supported()
    supported, reason = cutlass.CutlassFP8ScaledMMLinearKernel.is_supported(121)
    assert not supported
    assert "12.1" in reason
    # The INT8 kernel has the same lines next to it; it must not be touched.
    assert cutlass.CutlassInt8ScaledMMLinearKernel.is_supported(121)[0]
    pretend(12, 0)
    assert cutlass.CutlassFP8ScaledMMLinearKernel.is_supported(120)[0]


def chosen_for_fp8() -> list[str]:
    from vllm.model_executor.kernels import linear  # noqa: PLC0415
    from vllm.model_executor.layers.quantization.utils import quant_utils  # noqa: PLC0415

    def chosen(weight: Any) -> str:
        config = linear.FP8ScaledMMLinearLayerConfig(
            weight_quant_key=weight,
            activation_quant_key=quant_utils.kFp8DynamicTokenSym,
            weight_shape=(4096, 4096),
            input_dtype=torch.bfloat16,
            out_dtype=torch.bfloat16,
        )
        kernel = linear.choose_scaled_mm_linear_kernel(config, linear._POSSIBLE_FP8_KERNELS)
        return str(kernel.__name__)

    return [chosen(weight) for weight in (quant_utils.kFp8StaticTensorSym, quant_utils.kFp8StaticChannelSym)]


def kernel_selection_avoids_cutlass_on_12_1() -> None:
    pretend(12, 1)
    assert chosen_for_fp8() == ["ChannelWiseTorchFP8ScaledMMLinearKernel"] * 2
    pretend(12, 0)
    assert chosen_for_fp8() == ["CutlassFP8ScaledMMLinearKernel"] * 2


def turboquant_offers_full_graphs_for_single_tokens_only() -> None:
    from vllm.v1.attention.backend import AttentionCGSupport  # noqa: PLC0415
    from vllm.v1.attention.backends import turboquant_attn  # noqa: PLC0415

    builder = turboquant_attn.TurboQuantMetadataBuilder
    assert builder._cudagraph_support is AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE


def compiled_libraries_say_that_they_take_12_1() -> None:
    from vllm import _custom_ops  # noqa: PLC0415

    pretend(12, 1)
    for kind in ("fp8", "block_fp8", "fp4"):
        assert getattr(_custom_ops, f"cutlass_scaled_mm_supports_{kind}")(121), kind
    assert hasattr(torch.ops._moe_C, "moe_align_block_size")
    assert chosen_for_fp8() == ["CutlassFP8ScaledMMLinearKernel"] * 2


def qwen3_next_supports_eagle3() -> None:
    from vllm.model_executor.models.interfaces import supports_eagle3  # noqa: PLC0415
    from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM, Qwen3NextModel  # noqa: PLC0415

    assert supports_eagle3(Qwen3NextForCausalLM)
    outer = Qwen3NextForCausalLM.__new__(Qwen3NextForCausalLM)
    inner = Qwen3NextModel.__new__(Qwen3NextModel)
    for module in (outer, inner):
        torch.nn.Module.__init__(module)
    outer.model = inner
    outer.set_aux_hidden_state_layers((2, 24, 45))
    assert inner.aux_hidden_state_layers == (2, 24, 45)


def triton_takes_the_verifier_and_flash_attention_the_draft() -> None:
    import inspect  # noqa: PLC0415

    from vllm.model_executor.models import qwen3_dflash  # noqa: PLC0415
    from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend  # noqa: PLC0415
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend  # noqa: PLC0415

    assert TritonAttentionBackend.supports_non_causal()
    assert qwen3_dflash.FlashAttentionBackend is FlashAttentionBackend
    assert "attn_backend=FlashAttentionBackend" in inspect.getsource(qwen3_dflash.DFlashQwen3Attention)


def plans_are_written_to_memory_that_is_not_pinned() -> None:
    from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper  # noqa: PLC0415

    # Here nothing can be pinned: without the mod this fails.
    wrapper = BatchDecodeWithPagedKVCacheWrapper(torch.empty(1024, dtype=torch.uint8))
    assert not wrapper._pin_memory_int_workspace_buffer.is_pinned()


CLAIMS = {
    "gb10-cutlass-fallback": (
        cutlass_is_avoided_on_12_1_and_only_there,
        kernel_selection_avoids_cutlass_on_12_1,
    ),
    "eagle3-marker": (qwen3_next_supports_eagle3,),
    "dflash-split-backend": (triton_takes_the_verifier_and_flash_attention_the_draft,),
    # These have tests of their own, in test_mods_container.py and test_qwen35_template.py.
    "inspect-in-fork": (),
    "qwen35-chat-template": (),
    "unpinned-plans": (plans_are_written_to_memory_that_is_not_pinned,),
    "turboquant-cuda-graph": (turboquant_offers_full_graphs_for_single_tokens_only,),
    GRAFT: (compiled_libraries_say_that_they_take_12_1,),
}


if __name__ == "__main__":
    # Modules read the platform when they are imported.
    platforms._current_platform = PretendedGpu()
    changes = [*(entry["name"] for entry in mods()), *([GRAFT] if graft() else [])]
    if not changes or not CLAIMS.keys() >= set(changes):
        raise SystemExit(f"there are no claims about {changes or 'an image without mods'}")
    for name in changes:
        for claim in CLAIMS[name]:
            claim()
            sys.stdout.write(f"{claim.__name__.replace('_', ' ')}\n")
    sys.stdout.write("all claims hold\n")
