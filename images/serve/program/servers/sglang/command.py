"""Builds the `sglang serve` command from the settings."""

from __future__ import annotations

from typing import Any

from ...command import Command, flag_words, model_of, more_flags, option, served_names
from ...errors import ContradictionError, NotInThisServerError, ValueRefusedError
from ...image import Image, Setting
from ...settings import Settings, Value
from . import keys

ALWAYS = ("--model-type", "llm", "--enable-metrics")
"""No search of the hub for a diffusion model; /metrics as vLLM has it."""
SPECIAL = ("MODEL", "MODEL_PATH", "SERVED_MODEL_NAME")
"""Settings that `build` handles itself."""
DRAFT_SETTINGS = ("DFLASH_DRAFTER", "DFLASH_NUM_SPEC_TOKENS", "DRAFT_ATTENTION_BACKEND")
METHODS = {"dflash": "DFLASH", "dspark": "DSPARK"}
"""The methods of drafters that verify one block per step."""
SPELLED = {
    "ATTENTION_BACKEND": {"flash_attn": "fa4", "triton_attn": "triton", "torch_sdpa": "torch_native"},
    "DRAFT_ATTENTION_BACKEND": {"flash_attn": "fa4", "triton_attn": "triton"},
    "KV_CACHE_DTYPE": {"fp8": "fp8_e4m3"},
    "TOOL_CALL_PARSER": {"openai": "gpt-oss", "qwen3_xml": "qwen3_coder"},
    "REASONING_PARSER": {"openai_gptoss": "gpt-oss", "deepseek_r1": "deepseek-r1"},
}
"""Values that SGLang spells differently. Version 4 is the FlashAttention for today's GPUs."""
OTHERS = {
    "--speculative-config": "--speculative-algorithm and the like (or set DFLASH_DRAFTER)",
    "-sc": "--speculative-algorithm and the like (or set DFLASH_DRAFTER)",
    "--hf-overrides": "--json-model-override-args",
    "--moe-backend": "--moe-runner-backend",
    "--headless": "--node-rank",
    "--master-addr": "--dist-init-addr",
    "--master-port": "--dist-init-addr",
    "-tp": "--tp-size",
    "-pp": "--pp-size",
    "--hf-token": "no such flag (set HF_TOKEN)",
    "--compilation-config": "--cuda-graph-backend-decode and the like",
    "--async-scheduling": "nothing: it overlaps scheduling by itself",
}
"""Flags of vLLM that belong to no setting, with SGLang's."""


def build(image: Image, settings: Settings) -> Command:
    """Build the recommended command."""
    _refuse_foreign(image, settings)
    keys.check(settings.extra, settings.secrets)
    model, revision, own = model_of(image, settings)
    names = served_names(settings, model)
    _refuse_names(names)
    words = ["--model-path", model]
    if revision:
        words += ["--revision", revision]
    if names != (model,) and option(settings.extra, "--served-model-name") is None:
        words += ["--served-model-name", *names]
    for setting in image.settings.values():
        if setting.name not in SPECIAL:
            words += _words(setting, settings)
    if own:
        words += more_flags(image, settings)
    speculative = _given_speculative(settings)
    if speculative is None:
        speculative = _speculative(image, settings, own=own)
        words += _speculative_words(image, speculative) if speculative else []
    words += [*ALWAYS, *settings.extra]
    cache = str(spelled("KV_CACHE_DTYPE", settings.text("KV_CACHE_DTYPE")))
    return Command(tuple(words), model, revision, names, speculative, cache, settings.notes)


def spelled(name: str, value: Value) -> Value:
    """Return the value of a setting in SGLang's spelling."""
    return SPELLED.get(name, {}).get(value, value) if isinstance(value, str) else value


def _words(setting: Setting, settings: Settings) -> list[str]:
    value = settings.values.get(setting.name)
    if setting.name == "ENFORCE_EAGER":
        phases = ("decode", "prefill") if value is True else ()
        return [word for phase in phases for word in (f"--cuda-graph-backend-{phase}", "disabled")]
    if setting.name == "ENABLE_PREFIX_CACHING":
        return ["--disable-radix-cache"] if value is False else []
    if setting.name == "TOOL_CALL_PARSER" and settings.values.get("ENABLE_AUTO_TOOL_CHOICE") is False:
        return []
    return (
        flag_words(setting.flag, spelled(setting.name, value), setting.server_default) if setting.flag else []
    )


def _speculative(image: Image, settings: Settings, *, own: bool) -> dict[str, Any] | None:
    drafter = settings.text("DFLASH_DRAFTER")
    if not drafter or (not own and "DFLASH_DRAFTER" not in settings.given):
        return None
    known = next((entry for entry in image.drafters if entry["repo"] == drafter), {})
    tokens = settings.number("DFLASH_NUM_SPEC_TOKENS")
    if "DFLASH_NUM_SPEC_TOKENS" not in settings.given:
        tokens = known.get("tokens") or tokens
    backend = settings.text("DRAFT_ATTENTION_BACKEND")
    if "DRAFT_ATTENTION_BACKEND" not in settings.given:
        backend = known.get("attention_backend") or backend
    return {
        "method": known.get("method", "dflash"),
        "model": drafter,
        "revision": known.get("revision", ""),
        "num_speculative_tokens": tokens or 15,
        "attention_backend": spelled("DRAFT_ATTENTION_BACKEND", backend or "auto"),
    }


def _speculative_words(image: Image, config: dict[str, Any]) -> list[str]:
    if config["method"] not in METHODS:
        raise NotInThisServerError(
            f"SGLang {image.version} does not draft by the method {config['method']!r}.",
            setting="DFLASH_DRAFTER",
            value=str(config["model"]),
            allowed=f"a drafter of the method {' or '.join(METHODS)}",
            remedy="Set DFLASH_DRAFTER=off, name another drafter, or use an image with vLLM.",
        )
    words = [
        "--speculative-algorithm",
        METHODS[config["method"]],
        "--speculative-draft-model-path",
        config["model"],
    ]
    if config["revision"]:
        words += ["--speculative-draft-model-revision", config["revision"]]
    # SGLang counts the token that verifies the draft, vLLM does not.
    words += ["--speculative-num-draft-tokens", str(config["num_speculative_tokens"] + 1)]
    if config["attention_backend"] != "auto":
        words += ["--speculative-draft-attention-backend", config["attention_backend"]]
    return words


def _given_speculative(settings: Settings) -> dict[str, Any] | None:
    method = option(settings.extra, "--speculative-algorithm")
    if method is None:
        return None
    both = [name for name in DRAFT_SETTINGS if name in settings.given]
    if both:
        raise ContradictionError(
            f"{both[0]} and --speculative-algorithm both describe the drafter.",
            setting=both[0],
            value=settings.text(both[0]) or "off",
            allowed="one of the two",
            remedy=f"Leave out either {both[0]} or --speculative-algorithm.",
        )
    model = option(settings.extra, "--speculative-draft-model-path", "--speculative-draft-model")
    backend = option(settings.extra, "--speculative-draft-attention-backend")
    return {"method": method.lower(), "model": model or "", "attention_backend": backend or "auto"}


def _refuse_names(names: tuple[str, ...]) -> None:
    if len(names) > 1 or ":" in names[0]:
        raise ValueRefusedError(
            "SGLang serves a model by one name, which has no colon.",
            setting="SERVED_MODEL_NAME",
            value=",".join(names),
            allowed="one name without a colon",
            remedy="Keep one of them.",
        )


def _refuse_foreign(image: Image, settings: Settings) -> None:
    """Refuse the flags of vLLM: SGLang's parser would only say that it does not know them."""
    own = {setting.flag for setting in image.settings.values()}
    of_settings = {f"--{name.lower().replace('_', '-')}": name for name in (*image.settings, *image.refused)}
    for word in settings.extra:
        name = word.partition("=")[0]
        flag = name.replace("_", "-") if name.startswith("--") else name
        setting = of_settings.get(flag.replace("--no-", "--", 1), "")
        if flag in OTHERS or (setting and flag not in own):
            instead = OTHERS.get(flag) or f"the setting {setting}"
            raise NotInThisServerError(
                f"{flag} is a flag of vLLM; this image serves with SGLang {image.version}.",
                setting="EXTRA_ARGS",
                value=flag,
                allowed=f"flags of `sglang serve`; here {instead}",
                remedy=f"Use {instead}, or an image with vLLM.",
            )
