"""SGLang, the second server."""

from __future__ import annotations

from typing import Final

from imagefactory.project.servers.server import Server
from imagefactory.project.servers.sglang_settings import REFUSED, SCHEMA

_ON_CPU: Final = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "SKIP_CHECKS": "gpu,disk,memory",
    "SERVED_MODEL_NAME": "tiny",
    "DFLASH_DRAFTER": "off",
    "ATTENTION_BACKEND": "torch_native",
    "MAX_MODEL_LEN": "256",
    "MAX_NUM_SEQS": "4",
    "MAX_NUM_BATCHED_TOKENS": "2048",
    "GPU_MEMORY_UTILIZATION": "0.1",
    "QUANTIZATION": "auto",
    "DTYPE": "float32",
    "KV_CACHE_DTYPE": "auto",
    "ENFORCE_EAGER": "0",
    "ENABLE_PREFIX_CACHING": "0",
    "LOAD_FORMAT": "dummy",
    "TRUST_REMOTE_CODE": "0",
    "TOOL_CALL_PARSER": "off",
    "REASONING_PARSER": "off",
    "EXTRA_ARGS": "--device cpu --disable-overlap-schedule --max-total-tokens 2048",
}

SERVER: Final = Server(
    name="sglang",
    distribution="sglang",
    settings=SCHEMA,
    refused=REFUSED,
    tensor_parallel="--tp-size",
    cache="SGLANG_CACHE_DIR",
    on_cpu=_ON_CPU,
    checks_model_names=False,
    logs_backends=False,
    # sgl-flash-mla has code for data centre chips only, and SGLang does not choose it elsewhere.
    kernel_wheels=("sglang-kernel", "sgl-*", "flashinfer*"),
    kernel_files=("sgl_kernel/*", "deep_ep/*", "deep_gemm/*", "flash_mla/*", "flashinfer*/*"),
)
