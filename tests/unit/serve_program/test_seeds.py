"""Compares commands with published ones: the default ones of images, and those that settings ask for as authors did.

Each entry holds the command as published and our differences, with the reason.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from imagefactory.check.bench.published import load_published
from imagefactory.launch.preview import Preview
from imagefactory.project.matrix import Matrix
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.serving import READINGS, Images

SWITCHES = {
    *("--enforce-eager", "--enable-auto-tool-choice", "--enable-prefix-caching", "--trust-remote-code"),
    "--enable-metrics",
}


@dataclass(frozen=True)
class Shape:
    """A published launch command, and how ours differs."""

    target: str
    published: dict[str, Any]
    given: dict[str, str] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)
    """Flags that we add or change."""
    left_out: tuple[str, ...] = ()


def dflash(model: str, tokens: int = 15, **more: str) -> dict[str, Any]:
    return {"method": "dflash", "model": model, "num_speculative_tokens": tokens, **more}


GEMMA_ON_SPARK = {
    "--quantization": "fp8",
    "--max-model-len": 16384,
    "--max-num-batched-tokens": 16384,
    "--gpu-memory-utilization": 0.80,
    "--enforce-eager": True,
    "--limit-mm-per-prompt": {"image": 0, "video": 0},
}
# What vLLM calls it since 0.32.
RENAMED = {"--quantization": "fp8_per_tensor"}
# The fastest that the image has; one was published with a loader at all.
LOADER = {"--load-format": "instanttensor"}
QWEN_27B = {
    "--served-model-name": "qwen35-dflash",
    "--max-model-len": 65536,
    "--max-num-seqs": 16,
    "--max-num-batched-tokens": 32768,
    "--gpu-memory-utilization": 0.85,
    "--attention-backend": "flash_attn",
}
SHAPES = {
    "gemma4-31b with the RedHat drafter, split backends": Shape(
        "gemma4-31b",
        given={"DFLASH_DRAFTER": "RedHatAI/gemma-4-31B-it-speculator.dflash"},
        published={
            "model": "google/gemma-4-31B-it",
            **GEMMA_ON_SPARK,
            "--speculative-config": dflash("RedHatAI/gemma-4-31B-it-speculator.dflash", tokens=8),
        },
        # Patches kept the model on Triton and the drafter on FlashAttention; options do that now.
        ours=RENAMED
        | {
            "--attention-backend": "triton_attn",
            "--speculative-config": dflash(
                "RedHatAI/gemma-4-31B-it-speculator.dflash", tokens=8, attention_backend="flash_attn"
            ),
        },
    ),
    "gemma4-31b with z-lab's drafter": Shape(
        "gemma4-31b",
        published={
            "model": "google/gemma-4-31B-it",
            "--speculative-config": dflash("z-lab/gemma-4-31B-it-DFlash", attention_backend="flash_attn"),
            "--attention-backend": "triton_attn",
            "--max-num-batched-tokens": 32768,
            "--trust-remote-code": True,
        },
        # Published for a B300; the shape above was validated on a Spark, and neither model contains code.
        ours=GEMMA_ON_SPARK | RENAMED,
        left_out=("--trust-remote-code",),
    ),
    "gemma4-26b-a4b": Shape(
        "gemma4-26b-a4b",
        published={
            "model": "google/gemma-4-26B-A4B-it",
            "--attention-backend": "triton_attn",
            "--max-num-batched-tokens": 32768,
            "--speculative-config": dflash("z-lab/gemma-4-26B-A4B-it-DFlash", attention_backend="flash_attn"),
        },
        # Published for an H100; a Spark shares its memory with the host, so both are limited.
        ours={"--max-model-len": 32768, "--gpu-memory-utilization": 0.80, "--trust-remote-code": True},
    ),
    "qwen3.5-27b-nvfp4, the tuned container": Shape(
        "qwen3.5-27b-nvfp4",
        given={"MODEL_PATH": "/models/target"},
        published={"model": "/models/target", **QWEN_27B, "--speculative-config": dflash("z-lab/Qwen3.5-27B-DFlash")},
    ),
    "qwen3.5-27b-nvfp4 with TurboQuant": Shape(
        "qwen3.5-27b-nvfp4",
        given={"ENABLE_TURBOQUANT": "1", "TQ_MODE": "hybrid", "TQ_KEY_BITS": "4", "TQ_VALUE_BITS": "3"},
        published={"model": "AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4", **QWEN_27B},
        # Published with a plugin. vLLM's own TurboQuant rounds 4/3 bits up to 4/4 and is an attention backend
        # itself; since 0.22 the drafter needs a 16-bit cache of its own.
        left_out=("--attention-backend",),
        ours={
            "--kv-cache-dtype": "turboquant_4bit_nc",
            "--speculative-config": dflash("z-lab/Qwen3.5-27B-DFlash", kv_cache_dtype="auto"),
        },
    ),
    "qwen3.5-35b-a3b-int4": Shape(
        "qwen3.5-35b-a3b-int4",
        given={"PORT": "8888", "CHAT_TEMPLATE": "unsloth.jinja"},
        published={
            "model": "Intel/Qwen3.5-35B-A3B-int4-AutoRound",
            "--host": "0.0.0.0",  # noqa: S104
            "--port": 8888,
            "--max-model-len": 262144,
            "--max-num-batched-tokens": 32768,
            "--gpu-memory-utilization": 0.7,
            "--enable-auto-tool-choice": True,
            "--tool-call-parser": "qwen3_xml",
            "--load-format": "fastsafetensors",
            "--enable-prefix-caching": True,
            "--chat-template": "unsloth.jinja",
            "--attention-backend": "flash_attn",
            "--speculative-config": dflash("z-lab/Qwen3.5-35B-A3B-DFlash"),
        },
        left_out=("--host",),  # vLLM listens on every address anyway
    ),
    "qwen3-coder-next-nvfp4": Shape(
        "qwen3-coder-next-nvfp4",
        published={
            "model": "saricles/Qwen3-Coder-Next-NVFP4-GB10",
            "--enforce-eager": True,
            "--attention-backend": "flash_attn",
            "--max-num-batched-tokens": 32768,
            "--max-num-seqs": 4,
            "--gpu-memory-utilization": 0.60,
            "--speculative-config": dflash("z-lab/Qwen3-Coder-Next-DFlash"),
        },
        # A coding model needs tool calls.
        ours={"--enable-auto-tool-choice": True, "--tool-call-parser": "qwen3_coder"},
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_default_command_is_the_published_one_with_the_listed_differences(real_image: Images, name: str) -> None:
    shape = SHAPES[name]
    expected = {flag: value for flag, value in shape.published.items() if flag not in shape.left_out}
    assert flags_of(real_image(shape.target).command(shape.given)) == expected | LOADER | shape.ours


ALL_IMAGES = {"image": 999, "video": 999}  # what vLLM allows by itself; an image that is text-only needs a value
ALWAYS = {"--model-type": "llm", "--enable-metrics": True}
STARTS = load_published(REPOSITORY).starts
AUTHORS = {
    "RedHat's drafter on a Spark": SHAPES["gemma4-31b with the RedHat drafter, split backends"],
    # As its author's, with the patches as mods: of the options that replaced them, 0.20 has the model's alone.
    "RedHat's drafter on a Spark, with patches": replace(
        SHAPES["gemma4-31b with the RedHat drafter, split backends"], ours={"--attention-backend": "triton_attn"}
    ),
    "Qwen3.5-35B-A3B by eugr": SHAPES["qwen3.5-35b-a3b-int4"],
    "Qwen3-Coder-Next on a ThinkStation PGX": replace(SHAPES["qwen3-coder-next-nvfp4"], ours={}),
    "AEON-7's container": SHAPES["qwen3.5-27b-nvfp4, the tuned container"],
    "AEON-7's container with TurboQuant": replace(
        SHAPES["qwen3.5-27b-nvfp4 with TurboQuant"],
        published={"model": "/models/target", **QWEN_27B, "--served-model-name": "target"},
    ),
    "Gemma 4 26B-A4B on an H100": replace(SHAPES["gemma4-26b-a4b"], ours={"--max-model-len": 32768}),
    "z-lab's card on a B300": replace(
        SHAPES["gemma4-31b with z-lab's drafter"], ours={"--limit-mm-per-prompt": ALL_IMAGES}, left_out=()
    ),
    "z-lab's card with SGLang": Shape(
        "gemma4-31b@sglang-0.5.23",
        published={
            "--model-path": "google/gemma-4-31B-it",
            "--speculative-algorithm": "DFLASH",
            "--speculative-draft-model-path": "z-lab/gemma-4-31B-it-DFlash",
            "--speculative-num-draft-tokens": 16,
            "--tp-size": 1,
            "--attention-backend": "triton",
            "--speculative-draft-attention-backend": "fa4",
            "--trust-remote-code": True,
        },
        # One GPU and the port are SGLang's defaults, too; in a container it has to listen on every address.
        left_out=("--tp-size",),
        # Without a share SGLang takes 0.9, of which a Spark's host would not be left enough.
        ours=ALWAYS | {"--limit-mm-data-per-request": ALL_IMAGES, "--host": "0.0.0.0", "--mem-fraction-static": 0.8},  # noqa: S104
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_settings_start_what_the_authors_started(real_image: Images, name: str) -> None:
    shape, start = AUTHORS[name], STARTS[name]
    expected = {flag: value for flag, value in shape.published.items() if flag not in shape.left_out}
    assert flags_of(real_image(start.target).command(start.settings)) == expected | shape.ours


@pytest.mark.parametrize("name", STARTS)
def test_the_machine_of_its_author_would_start_it(real_image: Images, name: str, tmp_path: Path) -> None:
    start = STARTS[name]
    recorded = json.loads((READINGS / ("gb10.json" if "/" not in start.target else "h100.json")).read_text())
    if start.target.endswith("/b300"):
        recorded["gpus"][0] |= {"name": "NVIDIA B300", "capability": "10.3", "total": 288 * 10**9, "free": 287 * 10**9}
    readings = tmp_path / "readings.json"
    readings.write_text(json.dumps(recorded))
    checks = real_image(start.target).dry_run({**start.settings, "PORT": "18999"}, readings=readings)["checks"]
    failed = {check["name"]: check["detail"] for check in checks if check["result"] == "fail"}
    # What `differs` says to mount is not here.
    assert all("does not exist in the container" in detail for detail in failed.values()), failed
    assert set(failed) <= ({"model"} if "mount" in start.differs else set())


def test_each_founding_document_has_a_command() -> None:
    assert [*STARTS] == [*AUTHORS]
    documents = ("nvidia-forum-gemma4", "nvidia-forum-dflash", "aeon-7", "h100-article", "z-lab-card")
    assert tuple(dict.fromkeys(start.source for start in STARTS.values())) == documents
    assert STARTS["Qwen3.5-35B-A3B by eugr"].command == (
        "./inv run --target qwen3.5-35b-a3b-int4"
        " --set PORT=8888 --set CHAT_TEMPLATE=unsloth.jinja --set LOAD_FORMAT=fastsafetensors"
    )


def test_the_authors_variables_are_set(real_matrix: Matrix) -> None:
    models = real_matrix.models
    assert models["gemma4-31b"].serve.env["VLLM_DISABLE_COMPILE_CACHE"] == "1"
    assert models["qwen3.5-35b-a3b-int4"].serve.env["VLLM_MARLIN_USE_ATOMIC_ADD"] == "1"


def test_a_process_prints_what_the_program_prints_here(real_image: Images) -> None:
    here = real_image("gemma4-31b")
    process = Preview(here.root, here.description, here.model)
    for arguments in (("--dry-run", "--json"), ("settings", "--markdown"), ("check", "--nonsense")):
        ran, expected = (one.run(*arguments, variables={"CHECKS": "off"}) for one in (process, here))
        assert (ran.returncode, ran.stdout, ran.stderr) == (
            expected.returncode, expected.stdout, expected.stderr
        )  # fmt: skip


def flags_of(command: list[str]) -> dict[str, Any]:
    assert command[:2] in (["vllm", "serve"], ["sglang", "serve"])
    sglang = command[0] == "sglang"
    found: dict[str, Any] = {} if sglang else {"model": command[2]}
    rest = iter(command[2 if sglang else 3 :])
    for word in rest:
        if word in SWITCHES:
            found[word] = True
            continue
        text = next(rest)
        try:
            found[word] = json.loads(text)
        except ValueError:
            found[word] = text
    return found
