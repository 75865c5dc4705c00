"""Finds combinations of settings that are known to fail, each for the vLLM versions it affects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from ...findings import FAIL, WARN, Case, Finding
from ...image import Image
from ...settings import Settings

_fail = partial(Finding, "combination", FAIL)
_warn = partial(Finding, "combination", WARN)


class _Settings(NamedTuple):
    image: Image
    settings: Settings
    cache: str
    drafter: str
    draft_backend: str
    draft_cache: str
    capability: str
    hybrid: bool

    def vllm(self, first: str, end: str = "999") -> bool:
        """Whether the image's vLLM is at least `first` and older than `end`."""
        return self.image.at_least(first) and not self.image.at_least(end)

    @property
    def fa2(self) -> bool:
        """Whether FlashAttention is version 2, which reads no compressed KV cache; Hopper has version 3."""
        return self.capability.startswith(("12.", "10.", "8."))


def found(given: Case) -> Iterator[Finding]:
    """Find the known failures among these settings."""
    settings, command = given.settings, given.command
    speculative = command.speculative or {}
    dflash = speculative.get("method") == "dflash"
    case = _Settings(
        given.image,
        settings,
        command.cache_dtype if command.cache_dtype != "auto" else "",
        str(speculative.get("model", "")) if dflash else "",
        str(speculative.get("attention_backend", "auto")),
        str(speculative.get("kv_cache_dtype") or command.cache_dtype),
        given.capability,
        given.hybrid,
    )
    if case.drafter:
        yield from _with_drafter(case)
    if case.cache.startswith("turboquant_"):
        yield from _with_turboquant(case)
    if case.cache.startswith("fp8") and case.fa2 and settings.text("ATTENTION_BACKEND") == "flash_attn":
        yield _fail(
            "FlashAttention on this GPU is version 2, which has no fp8 KV cache",
            "ATTENTION_BACKEND",
            "flash_attn",
            "triton_attn, flashinfer",
            "Set ATTENTION_BACKEND=triton_attn, or KV_CACHE_DTYPE=auto.",
        )


def _with_drafter(case: _Settings) -> Iterator[Finding]:
    if not case.vllm("0.20"):
        yield _fail(
            f"DFlash needs vLLM 0.20.0; this image has {case.image.version}",
            "DFLASH_DRAFTER",
            case.drafter,
            "off",
            "Set DFLASH_DRAFTER=off, or use an image with vLLM 0.20 or later.",
        )
    if case.drafter.startswith("z-lab/gemma-4-") and not case.vllm("0.26"):
        yield _fail(
            "this drafter mixes sliding and full attention, which DFlash supports since vLLM 0.26.0",
            "DFLASH_DRAFTER",
            case.drafter,
            "RedHatAI/gemma-4-31B-it-speculator.dflash, or off",
            "Use an image with vLLM 0.26 or later, or another drafter.",
        )
    chooses_backend = case.vllm("0.24")
    reads_fp8 = chooses_backend and case.draft_backend != "flash_attn"
    if case.draft_cache.startswith("fp8") and case.fa2 and case.vllm("0.22") and not reads_fp8:
        yield _fail(
            "since vLLM 0.22 the drafter gets the model's fp8 KV cache, which its FlashAttention cannot read",
            "KV_CACHE_DTYPE",
            case.cache,
            "auto",
            "Set DRAFT_ATTENTION_BACKEND=triton_attn, or KV_CACHE_DTYPE=auto."
            if chooses_backend
            else "Set KV_CACHE_DTYPE=auto; other draft backends need vLLM 0.24.",
        )
    if case.draft_backend != "auto" and case.vllm("0.24", "0.25"):
        yield _warn(
            "vLLM 0.24 ignores the drafter's attention backend with its second model runner",
            "DRAFT_ATTENTION_BACKEND",
            case.draft_backend,
            "",
            "Check the backends in the log; vLLM 0.25 and later use the setting.",
        )
    if case.image.weights.startswith("int4"):
        yield _warn(
            "INT4-AutoRound weights with DFlash work for some users and fail for others",
            "DFLASH_DRAFTER",
            case.drafter,
            "",
            "If answers are wrong or slow, set DFLASH_DRAFTER=off, or use NVFP4 or FP8 weights.",
        )


def _with_turboquant(case: _Settings) -> Iterator[Finding]:
    if case.drafter and not case.vllm("0.21"):
        yield _fail(
            "TurboQuant and DFlash exclude each other in vLLM 0.20: DFlash makes every layer non-causal",
            "ENABLE_TURBOQUANT",
            "1",
            "0 together with DFlash",
            "Set DFLASH_DRAFTER=off, or ENABLE_TURBOQUANT=0, or use an image with a newer vLLM.",
        )
    elif case.drafter:
        yield _warn(
            "TurboQuant with speculative decoding has an open bug with chunked prefill and CUDA graphs",
            "ENABLE_TURBOQUANT",
            "1",
            "",
            "If requests fail, set ENFORCE_EAGER=1 or DFLASH_DRAFTER=off.",
        )
    backend = case.settings.text("ATTENTION_BACKEND")
    if "ATTENTION_BACKEND" in case.settings.given and backend not in {"", "auto"}:
        yield _fail(
            f"TurboQuant is itself an attention backend; vLLM refuses to combine it with {backend}",
            "ATTENTION_BACKEND",
            backend,
            "auto",
            "Leave ATTENTION_BACKEND out, or set ENABLE_TURBOQUANT=0.",
        )
    if case.hybrid and not case.vllm("0.21"):
        yield _fail(
            "TurboQuant supports models with linear attention layers since vLLM 0.21",
            "ENABLE_TURBOQUANT",
            "1",
            "0",
            "Set ENABLE_TURBOQUANT=0, or use an image with vLLM 0.21 or later.",
        )
