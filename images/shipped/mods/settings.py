"""What a mod may set in the images that have it: how the server computes, not whom it trusts or what it loads."""

import re
from collections.abc import Mapping

from pydantic_core import PydanticCustomError

_ENV = re.compile(
    r"VLLM_((ATTENTION|DEEP_GEMM|FLASHINFER|GDN|MARLIN|MLA|MOE|MXFP4|MXFP8|NVFP4|TRITON)_[A-Z0-9_]+"
    r"|USE_(DEEP_GEMM|FLASHINFER|FUSED_MOE|TRITON)[A-Z0-9_]*"
    r"|BATCH_INVARIANT|DISABLE_COMPILE_CACHE|DISABLED_KERNELS|FLOAT32_MATMUL_PRECISION|KV_CACHE_LAYOUT)"
    r"(?<!_DIR)(?<!_PATH)"
)
_FLAGS = re.compile(
    "async_scheduling|attention_backend|block_size|enable_auto_tool_choice|enable_prefix_caching|enforce_eager"
    "|gpu_memory_utilization|kv_cache_dtype|max_model_len|max_num_batched_tokens|max_num_seqs|moe_backend|quantization"
    "|reasoning_parser|tool_call_parser"
)
_OWN_FILES = frozenset({"chat_template", "reasoning_parser_plugin", "tool_parser_plugin"})
"""Flags that load a file, which has to be one that a mod brings."""
_VALUE = re.compile(r"[A-Za-z0-9_.,:+-]*")


def refuse_settings(settings: Mapping[str, str], files: str) -> None:
    """Refuse what a mod may not set; `files` is the folder for the files that mods bring."""
    for name, value in settings.items():
        if name in _OWN_FILES:
            may = value.startswith(files) and ".." not in value and value.isprintable()
            fault = f"has to name a file below {files}"
        elif _ENV.fullmatch(name) or _FLAGS.fullmatch(name):
            may, fault = bool(_VALUE.fullmatch(value)), "has a value that is no plain word or number"
        else:
            may, fault = False, "is not among what mods may set (images/shipped/mods/settings.py)"
        if not may:
            raise PydanticCustomError("setting", "{name} {fault}", {"name": name, "fault": fault})
