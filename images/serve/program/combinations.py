"""Combinations of settings that are known to fail, each with the vLLM versions it holds for.

One function per combination, so that each can say in its own words why and what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from . import versions
from .command import Command
from .image import Image
from .settings import Settings


class Known(NamedTuple):
    """A combination that was found, and how bad it is."""

    result: str
    detail: str
    setting: str
    value: str
    allowed: str
    remedy: str


class Case(NamedTuple):
    """What the combinations look at."""

    image: Image
    settings: Settings
    cache: str
    drafter: str
    draft_backend: str
    draft_cache: str
    capability: str
    hybrid: bool

    def vllm(self, first: str, end: str = "999") -> bool:
        """Return whether the image's vLLM lies in a range."""
        return versions.between(self.image.vllm, first, end)

    @property
    def fa2(self) -> bool:
        """FlashAttention is version 2 there, which reads no compressed KV cache; Hopper has version 3."""
        return self.capability.startswith(("12.", "10.", "8."))


def found(
    image: Image, settings: Settings, command: Command, capability: str, *, hybrid: bool
) -> Iterator[Known]:
    """List the known failures among these settings."""
    speculative = command.speculative or {}
    dflash = speculative.get("method") == "dflash"
    case = Case(
        image,
        settings,
        command.cache_dtype if command.cache_dtype != "auto" else "",
        str(speculative.get("model", "")) if dflash else "",
        str(speculative.get("attention_backend", "auto")),
        str(speculative.get("kv_cache_dtype") or command.cache_dtype),
        capability,
        hybrid,
    )
    for combination in COMBINATIONS:
        known = combination(case)
        if known is not None:
            yield known


def old_kernels(image: Image) -> bool:
    """Whether the image's kernels are those of a wheel that was built for 12.0a."""
    return not versions.at_least(image.vllm, "0.20") and image.facts.get("kernels") != "compiled"


def _no_dflash(case: Case) -> Known | None:
    if not case.drafter or case.vllm("0.20"):
        return None
    return Known(
        "fail",
        f"DFlash first appears in vLLM 0.20.0; this image has {case.image.vllm}",
        "DFLASH_DRAFTER",
        case.drafter,
        "off",
        "Set DFLASH_DRAFTER=off, or use an image with vLLM 0.20 or later.",
    )


def _mixed_attention_drafter(case: Case) -> Known | None:
    if not case.drafter.startswith("z-lab/gemma-4-") or case.vllm("0.26"):
        return None
    return Known(
        "fail",
        "this drafter mixes sliding and full attention, which DFlash takes from vLLM 0.26.0 on",
        "DFLASH_DRAFTER",
        case.drafter,
        "RedHatAI/gemma-4-31B-it-speculator.dflash, or off",
        "Use an image with vLLM 0.26 or later, or another drafter.",
    )


def _fp8_cache_with_flash_attention(case: Case) -> Known | None:
    if not case.cache.startswith("fp8") or not case.fa2:
        return None
    if case.settings.text("ATTENTION_BACKEND") == "flash_attn":
        return Known(
            "fail",
            "FlashAttention on this GPU is version 2, which has no fp8 KV cache",
            "ATTENTION_BACKEND",
            "flash_attn",
            "triton_attn, flashinfer",
            "Set ATTENTION_BACKEND=triton_attn, or KV_CACHE_DTYPE=auto.",
        )
    return None


def _fp8_cache_with_draft(case: Case) -> Known | None:
    if not case.drafter or not case.draft_cache.startswith("fp8") or not case.fa2 or not case.vllm("0.22"):
        return None
    if case.vllm("0.24") and case.draft_backend not in {"flash_attn", "auto"}:
        return None
    if case.vllm("0.24") and case.draft_backend == "auto":
        return None
    remedy = (
        "Set DRAFT_ATTENTION_BACKEND=triton_attn, or KV_CACHE_DTYPE=auto."
        if case.vllm("0.24")
        else "Set KV_CACHE_DTYPE=auto; other draft backends follow with vLLM 0.24."
    )
    return Known(
        "fail",
        "from vLLM 0.22 on the draft gets the target's fp8 KV cache, which its FlashAttention cannot read",
        "KV_CACHE_DTYPE",
        case.cache,
        "auto",
        remedy,
    )


def _turboquant_with_dflash(case: Case) -> Known | None:
    if not case.cache.startswith("turboquant_") or not case.drafter:
        return None
    if not case.vllm("0.21"):
        return Known(
            "fail",
            "TurboQuant and DFlash exclude each other in vLLM 0.20: DFlash makes every layer non-causal there",
            "ENABLE_TURBOQUANT",
            "1",
            "0 together with DFlash",
            "Set DFLASH_DRAFTER=off, or ENABLE_TURBOQUANT=0, or use an image with a newer vLLM.",
        )
    return Known(
        "warn",
        "TurboQuant with speculative decoding has an open fault with chunked prefill and CUDA graphs",
        "ENABLE_TURBOQUANT",
        "1",
        "",
        "If requests fail, set ENFORCE_EAGER=1 or DFLASH_DRAFTER=off.",
    )


def _turboquant_with_backend(case: Case) -> Known | None:
    backend = case.settings.text("ATTENTION_BACKEND")
    if not case.cache.startswith("turboquant_") or "ATTENTION_BACKEND" not in case.settings.given:
        return None
    if backend in {"", "auto"}:
        return None
    return Known(
        "fail",
        f"TurboQuant is an attention backend of its own; vLLM refuses {backend} beside it",
        "ATTENTION_BACKEND",
        backend,
        "auto",
        "Leave ATTENTION_BACKEND out, or set ENABLE_TURBOQUANT=0.",
    )


def _turboquant_on_hybrid(case: Case) -> Known | None:
    if not case.cache.startswith("turboquant_") or not case.hybrid or case.vllm("0.21"):
        return None
    return Known(
        "fail",
        "TurboQuant takes models with linear attention layers from vLLM 0.21 on",
        "ENABLE_TURBOQUANT",
        "1",
        "0",
        "Set ENABLE_TURBOQUANT=0, or use an image with vLLM 0.21 or later.",
    )


def _int4_with_dflash(case: Case) -> Known | None:
    if not case.drafter or not case.image.weights.startswith("int4"):
        return None
    return Known(
        "warn",
        "reports about INT4-AutoRound weights with DFlash disagree: it runs for some and fails for others",
        "DFLASH_DRAFTER",
        case.drafter,
        "",
        "If answers are wrong or slow, set DFLASH_DRAFTER=off, or use NVFP4 or FP8 weights.",
    )


def _draft_backend_ignored(case: Case) -> Known | None:
    if not case.drafter or case.draft_backend == "auto" or not case.vllm("0.24", "0.25"):
        return None
    return Known(
        "warn",
        "vLLM 0.24 ignores the draft's attention backend where it uses its second model runner",
        "DRAFT_ATTENTION_BACKEND",
        case.draft_backend,
        "",
        "Look at the backends that the log reports; 0.25 and later heed it.",
    )


COMBINATIONS: tuple[Callable[[Case], Known | None], ...] = (
    _no_dflash,
    _mixed_attention_drafter,
    _fp8_cache_with_flash_attention,
    _fp8_cache_with_draft,
    _turboquant_with_dflash,
    _turboquant_with_backend,
    _turboquant_on_hybrid,
    _int4_with_dflash,
    _draft_backend_ignored,
)
