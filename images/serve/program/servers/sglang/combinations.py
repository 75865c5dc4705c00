"""Finds combinations of settings that are known to fail, each for the SGLang versions it affects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ...command import option
from ...findings import FAIL, WARN, Case, Finding
from .command import spelled

_fail = partial(Finding, "combination", FAIL)
_warn = partial(Finding, "combination", WARN)


def found(case: Case) -> Iterator[Finding]:
    """Find the known failures among these settings."""
    backends = {
        "ATTENTION_BACKEND": str(spelled("ATTENTION_BACKEND", case.settings.text("ATTENTION_BACKEND")))
    }
    drafter = ""
    speculative = case.command.speculative
    if speculative:
        drafter = str(speculative["model"])
        backends["DRAFT_ATTENTION_BACKEND"] = str(speculative["attention_backend"])
    for setting, backend in backends.items():
        yield from _backend(case, setting, backend)
    if speculative and speculative["method"] == "dflash":
        yield from _dflash(case, drafter)
    if option(case.settings.extra, "--grammar-backend") == "outlines":
        # Its outlines 0.1 imports outlines_core.fsm, which the outlines-core for Python 3.13 no longer has.
        yield _fail(
            "Outlines does not work with the image's Python",
            "EXTRA_ARGS",
            "--grammar-backend outlines",
            "--grammar-backend xgrammar or llguidance",
            "Leave --grammar-backend out; SGLang then uses xgrammar.",
        )


def _backend(case: Case, setting: str, backend: str) -> Iterator[Finding]:
    newer = not case.capability.startswith(("8.", "9."))
    if backend == "fa3" and case.capability and newer:
        yield _fail(
            f"FlashAttention 3 is for compute capability 9.0; this GPU has {case.capability}",
            setting,
            backend,
            "triton, flashinfer, fa4",
            f"Set {setting}=triton.",
        )
    wanted = ("", "auto", "triton", "flashinfer", "trtllm_mha")
    if (
        setting == "ATTENTION_BACKEND"
        and case.hybrid
        and case.capability.startswith("12.")
        and backend not in wanted
    ):
        yield _fail(
            f"on compute capability 12.x SGLang serves models with linear attention by {', '.join(wanted[2:])} only",
            setting,
            backend,
            ", ".join(wanted[1:]),
            f"Set {setting}=triton.",
        )
    if backend == "fa4" and case.capability.startswith("12.") and not case.image.at_least("0.5.18"):
        yield _fail(
            f"FlashAttention 4 runs on compute capability {case.capability} since SGLang 0.5.18",
            setting,
            backend,
            "triton, flashinfer",
            f"Set {setting}=triton, or use an image with SGLang 0.5.18 or later.",
        )


def _dflash(case: Case, drafter: str) -> Iterator[Finding]:
    gemma = "gemma-4" in drafter.lower()
    since = "0.5.14" if gemma else "0.5.11"
    if not case.image.at_least(since):
        yield _fail(
            f"DFlash {'for Gemma 4 ' if gemma else ''}needs SGLang {since}; this image has {case.image.version}",
            "DFLASH_DRAFTER",
            drafter,
            "off",
            f"Set DFLASH_DRAFTER=off, or use an image with SGLang {since} or later.",
        )
    stages = option(case.settings.extra, "--pp-size", "--pipeline-parallel-size") or "1"
    if stages != "1":
        yield _fail(
            "SGLang's DFlash does not work with pipeline parallelism",
            "DFLASH_DRAFTER",
            drafter,
            "off with --pp-size",
            "Use --tp-size instead, or set DFLASH_DRAFTER=off.",
        )
    if case.image.weights.startswith("int4"):
        yield _warn(
            "INT4-AutoRound weights with DFlash work for some users and fail for others",
            "DFLASH_DRAFTER",
            drafter,
            "",
            "If answers are wrong or slow, set DFLASH_DRAFTER=off, or use NVFP4 or FP8 weights.",
        )
