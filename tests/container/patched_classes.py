"""Checks the patched classes of vLLM 0.20.2 in a container of an image with three mods.

It fakes a GPU platform, which needs only the symbols of the driver (with_driver_stub.sh).
"""

from __future__ import annotations

import json
import sys
from importlib.util import source_hash
from pathlib import Path
from typing import Any

import torch
from vllm import platforms
from vllm.platforms import cuda, interface

MODS = {"eagle3-marker", "gb10-cutlass-fallback", "dflash-split-backend"}


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


def the_image_notes_its_mods() -> None:
    noted = json.loads(Path("/usr/share/imagefactory/mods.json").read_text("utf-8"))["mods"]
    assert {entry["name"] for entry in noted} == MODS
    assert all(entry["licence"] == "Apache-2.0" and entry["files"] for entry in noted)


def no_bytecode_is_stale() -> None:
    noted = json.loads(Path("/usr/share/imagefactory/mods.json").read_text("utf-8"))["mods"]
    packages = Path(torch.__file__).parents[1]
    for path in {packages / path for entry in noted for path in entry["files"]}:
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            data = compiled.read_bytes()
            # Bytecode of the image has the hash of its source; that of this process is newer than the image.
            hashed = int.from_bytes(data[4:8], "little") & 1
            if hashed:
                assert data[8:16] == source_hash(path.read_bytes())
            else:
                assert compiled.stat().st_mtime > path.stat().st_mtime


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


def kernel_selection_avoids_cutlass_on_12_1() -> None:
    from vllm.model_executor.kernels import linear  # noqa: PLC0415
    from vllm.model_executor.layers.quantization.utils import quant_utils  # noqa: PLC0415

    def chosen(weight: Any, activation: Any) -> str:
        config = linear.FP8ScaledMMLinearLayerConfig(
            weight_quant_key=weight,
            activation_quant_key=activation,
            weight_shape=(4096, 4096),
            input_dtype=torch.bfloat16,
            out_dtype=torch.bfloat16,
        )
        kernel = linear.choose_scaled_mm_linear_kernel(config, linear._POSSIBLE_FP8_KERNELS)
        return str(kernel.__name__)

    token = quant_utils.kFp8DynamicTokenSym
    weights = (quant_utils.kFp8StaticTensorSym, quant_utils.kFp8StaticChannelSym)
    pretend(12, 1)
    assert [chosen(weight, token) for weight in weights] == ["ChannelWiseTorchFP8ScaledMMLinearKernel"] * 2
    pretend(12, 0)
    assert [chosen(weight, token) for weight in weights] == ["CutlassFP8ScaledMMLinearKernel"] * 2


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


CLAIMS = (
    the_image_notes_its_mods,
    no_bytecode_is_stale,
    cutlass_is_avoided_on_12_1_and_only_there,
    kernel_selection_avoids_cutlass_on_12_1,
    qwen3_next_supports_eagle3,
    triton_takes_the_verifier_and_flash_attention_the_draft,
)


if __name__ == "__main__":
    # Modules read the platform when they are imported.
    platforms._current_platform = PretendedGpu()
    for claim in CLAIMS:
        claim()
        sys.stdout.write(f"{claim.__name__.replace('_', ' ')}\n")
    sys.stdout.write("all claims hold\n")
