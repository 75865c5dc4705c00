"""SGLang, the second server: its images have the settings of vLLM that SGLang has too, with its own flags and values.

The serve program spells vLLM's values as SGLang does where the two mean the same (images/serve/program/servers/sglang).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from imagefactory.project.servers.server import Server, Setting
from imagefactory.project.servers.vllm import SCHEMA as VOCABULARY

_BACKENDS = ("flash_attn", "triton_attn", "flashinfer", "fa3", "fa4", "triton", "trtllm_mha")
_TURBOQUANT = "SGLang has no TurboQuant. Set KV_CACHE_DTYPE=fp8 for a smaller KV cache, or use an image with vLLM."
_KV_DISK = (
    "SGLang names the files of its own cache on disk by the model's name alone: it would read those of another "
    "revision or data type, and damaged ones. Use an image with vLLM."
)
REFUSED: Final[Mapping[str, str]] = {
    setting.name: _KV_DISK if setting.name.startswith("KV_DISK") else _TURBOQUANT
    for setting in VOCABULARY
    if setting.name.startswith(("TQ_", "ENABLE_TURBOQUANT", "KV_DISK"))
}
"""Settings that SGLang lacks, with what to do instead."""


def _or_auto(words: str) -> tuple[str, ...]:
    return ("auto", *words.split())


_CHANGES: Final[Mapping[str, dict[str, object]]] = {
    "SERVED_MODEL_NAME": {
        "description": 'The name that clients send as `"model"`. Defaults to MODEL, or the end of MODEL_PATH.'
    },
    "DRAFT_ATTENTION_BACKEND": {"choices": ("auto", *_BACKENDS), "since": ""},
    "ATTENTION_BACKEND": {
        "choices": ("auto", *_BACKENDS, "flex_attention", "torch_sdpa", "torch_native"),
        "since_of": {},
    },
    "MAX_MODEL_LEN": {"spelled": "--context-length"},
    "MAX_NUM_SEQS": {"spelled": "--max-running-requests"},
    "MAX_NUM_BATCHED_TOKENS": {
        "spelled": "--chunked-prefill-size",
        "description": "Tokens of prompts processed per step.",
    },
    "GPU_MEMORY_UTILIZATION": {
        "spelled": "--mem-fraction-static",
        "description": "Share of the memory that is free at the start, for weights and KV cache; working memory comes "
        "on top. On a DGX Spark the host uses the same memory.",
    },
    "QUANTIZATION": {
        "choices": _or_auto(
            "auto-round awq awq_marlin bitsandbytes compressed-tensors fp8 gguf gptq gptq_marlin modelopt modelopt_fp4 "
            "modelopt_fp8 modelopt_mixed moe_wna16 mxfp4 mxfp8 nvfp4_online quark w8a8_fp8 w8a8_int8"
        ),
        "since_of": {},
    },
    "KV_CACHE_DTYPE": {
        "choices": ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4", "fp4_mx_block16"),
        "since_of": {},
    },
    "ENFORCE_EAGER": {"description": "Skip CUDA graphs: the server is ready sooner.", "passed": False},
    "ENABLE_PREFIX_CACHING": {
        "description": "Reuse the KV cache of common prompt prefixes. On unless it is 0.",
        "passed": False,
    },
    "LOAD_FORMAT": {
        "description": "How to load the weights.",
        "choices": _or_auto(
            "bitsandbytes dummy fastsafetensors gguf layered mistral npcache pt runai_streamer safetensors "
            "sharded_state"
        ),
        "since_of": {},
    },
    "ENABLE_AUTO_TOOL_CHOICE": {
        "description": "Let the model decide when to call tools. On with a TOOL_CALL_PARSER; 0 leaves the parser out.",
        "passed": False,
    },
    "LIMIT_MM_PER_PROMPT": {
        "spelled": "--limit-mm-data-per-request",
        "description": "Maximum images, videos and audios per prompt, as JSON.",
    },
    "VLLM_API_KEY": {
        "description": "The API key that clients must send; all images call it so. Commands and logs never show "
        "it, but `docker inspect` does: prefer VLLM_API_KEY_FILE."
    },
    "HOST": {"server_default": "127.0.0.1"},
    "PORT": {"server_default": "30000"},
    "EXTRA_ARGS": {"description": "More flags for `sglang serve`, quoted as in a shell."},
}


SCHEMA: Final[tuple[Setting, ...]] = tuple(
    replace(setting, **_CHANGES.get(setting.name, {}))  # type: ignore[arg-type] # each is of its field's type
    for setting in VOCABULARY
    if setting.name not in REFUSED
)

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
    # Of what is free before the load; tokens are bounded below. A small share fails where others take memory meanwhile.
    "GPU_MEMORY_UTILIZATION": "0.8",
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
