"""Reads vLLM's log and metrics."""

import re
from collections.abc import Iterable

from ...timeline import Moments, timed
from ..server import Choices, LogLines

LINES = LogLines(
    telling=("backend", "GEMM", "native support for FP", "LinearKernel", "init engine ("),
    steps=("non-default args", "Starting to load model", "Loading model from"),
)
_ENGINE = re.compile(r"init engine \(.*?\) took ([\d.]+) s(?: \(compilation: ([\d.]+) s)?")
"""vLLM's own figures for what follows the weights: profiling, compiling, CUDA graphs, kernels; and for compiling."""
_ATTENTION = re.compile(
    r"Using (?:AttentionBackendEnum\.)?(\w+?)(?: attention)? backend(?: out of potential backends|\.)"
)
_KERNEL = re.compile(r"Using (?:(\w+) for (\w+) GEMM|'?(\w+)'? (\w+) MoE backend)")
_SLOW = re.compile(r"does not have native support for (FP4|FP8)")
WORK = re.compile(
    rb"^vllm:(?:(iteration_tokens_total_sum|kv_cache_usage_perc)|num_requests_(?:running|waiting))"
    rb"(?:\{[^}]*\})? ([0-9.e+-]+)",
    re.MULTILINE,
)
"""It counts the tokens of a prompt only once it has read all of it; until then the share of the cache grows."""
_METRIC = re.compile(
    rb"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens)(?:_total)?(?:\{[^}]*\})? ([0-9.e+]+)",
    re.MULTILINE,
)


def moments(lines: Iterable[str], found: Moments) -> Moments:
    for moment, text in timed(lines):
        if text.startswith("non-default args") and found.imported is None:
            found = found._replace(imported=moment)
        elif text.startswith(("Starting to load model", "Loading model from")) and found.loading is None:
            found = found._replace(loading=moment)
        elif engine := _ENGINE.match(text):
            loaded = moment - float(engine[1])
            compiled = loaded + float(engine[2]) if engine[2] else None
            found = found._replace(loaded=loaded, compiled=compiled, captured=moment)
    return found


def choices(lines: Iterable[str]) -> Choices:
    told = list(lines)
    text = "\n".join(told)
    attention = _ATTENTION.findall("\n".join(line for line in told if "vit" not in line and "MLA prefill" not in line))
    kernels = [
        f"{dtype} GEMM by {gemm}" if gemm else f"{other} MoE by {moe}"
        for gemm, dtype, moe, other in _KERNEL.findall(text)
    ]
    return Choices(*(tuple(dict.fromkeys(found)) for found in (attention, kernels, _SLOW.findall(text))))


def counters(metrics: bytes) -> tuple[float, float, float]:
    found = {b"drafts": 0.0, b"draft_tokens": 0.0, b"accepted_tokens": 0.0}
    for name, value in _METRIC.findall(metrics):
        found[name] += float(value)
    return found[b"drafts"], found[b"draft_tokens"], found[b"accepted_tokens"]
