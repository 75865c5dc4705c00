"""Builds the `vllm serve` command from the settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import ContradictionError
from .hiding import masked
from .image import Image
from .settings import Settings

SPECIAL = ("MODEL", "MODEL_PATH", "SERVED_MODEL_NAME", "KV_CACHE_DTYPE")
"""Settings that `build` handles itself."""
DRAFT_SETTINGS = ("DFLASH_DRAFTER", "DFLASH_NUM_SPEC_TOKENS", "DRAFT_ATTENTION_BACKEND")
TURBOQUANT = {
    (8, 4): "turboquant_k8v4",
    (4, 4): "turboquant_4bit_nc",
    (3, 4): "turboquant_k3v4_nc",
    (3, 3): "turboquant_3bit_nc",
}
WITHOUT_EFFECT = ("TQ_RING_CAPACITY", "TQ_INITIAL_LAYERS")


class Command(NamedTuple):
    """The command, with remarks for the user."""

    arguments: tuple[str, ...]
    model: str
    revision: str
    served_names: tuple[str, ...]
    speculative: dict[str, Any] | None
    cache_dtype: str
    remarks: tuple[str, ...]


def build(image: Image, settings: Settings) -> Command:
    """Build the recommended command."""
    model, revision, own = _model(image, settings)
    cache, remarks = _turboquant(settings)
    cache = cache or settings.text("KV_CACHE_DTYPE")
    words: list[str] = [model]
    if revision:
        words += ["--revision", revision]
    names = tuple(name for name in settings.text("SERVED_MODEL_NAME").split(",") if name) or (model,)
    if names != (model,) and option(settings.extra, "--served-model-name") is None:
        words += ["--served-model-name", *names]
    done = set(SPECIAL)
    # TurboQuant is itself an attention backend; vLLM refuses any other beside it.
    backend = settings.text("ATTENTION_BACKEND")
    if cache.startswith("turboquant_") and backend and "ATTENTION_BACKEND" not in settings.given:
        remarks.append("TurboQuant brings its own attention: ATTENTION_BACKEND is not used")
        done.add("ATTENTION_BACKEND")
    for setting in image.settings.values():
        if setting.flag and setting.name not in done:
            words += _flag(setting.flag, settings.values.get(setting.name), setting.vllm_default)
    if own:
        words += _more_flags(image, settings)
    if cache and cache != "auto":
        words += ["--kv-cache-dtype", cache]
    speculative = _given_speculative(settings)
    if speculative is None:
        speculative = _speculative(image, settings, cache, own=own)
        words += ["--speculative-config", json.dumps(speculative)] if speculative else []
    words += settings.extra
    return Command(tuple(words), model, revision, names, speculative, cache, (*settings.notes, *remarks))


def _more_flags(image: Image, settings: Settings) -> list[str]:
    """Return the flags that the model or its mods need beyond the settings, unless the user gave them."""
    words: list[str] = []
    for name, value in image.facts.get("flags", {}).items():
        flag = f"--{name.replace('_', '-')}"
        if option(settings.extra, flag) is None and flag not in settings.extra:
            words += _flag(flag, value, "")
    return words


def shown(arguments: Sequence[str]) -> str:
    """Return the command quoted for a shell, with its secrets hidden."""
    return shlex.join(("vllm", "serve", *masked(arguments)))


def option(arguments: Sequence[str], *names: str) -> str | None:
    """Return the last value of an option among arguments."""
    found = None
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in names:
            if equals:
                found = value
            elif index + 1 < len(arguments):
                found = arguments[index + 1]
    return found


def _model(image: Image, settings: Settings) -> tuple[str, str, bool]:
    """Return the model, its revision, and whether it is the image's own."""
    path = settings.text("MODEL_PATH")
    if path:
        return path, "", True
    model = settings.text("MODEL") or str(image.model["model"])
    own = model == image.model["model"]
    return model, str(image.model.get("revision", "")) if own else "", own


def _turboquant(settings: Settings) -> tuple[str, list[str]]:
    """Return the data type of the KV cache (empty: uncompressed), with remarks for the user.

    The settings are those of a plugin of the same name; vLLM has four fixed data types instead.
    """
    if not settings.on("ENABLE_TURBOQUANT"):
        return "", []
    mode = settings.text("TQ_MODE") or "hybrid"
    if mode in {"off", "capture_only"}:
        return "", [f"TQ_MODE={mode}: the KV cache is not compressed"]
    keys, values = settings.number("TQ_KEY_BITS") or 4, settings.number("TQ_VALUE_BITS") or 4
    enough = [bits for bits in TURBOQUANT if bits[0] >= keys and bits[1] >= values]
    chosen = TURBOQUANT[min(enough, key=sum, default=(8, 4))]
    remarks = []
    if (keys, values) not in TURBOQUANT:
        remarks.append(
            f"vLLM's TurboQuant has no {keys}-bit keys with {values}-bit values; {chosen}, the nearest, is used"
        )
    if mode == "full_tq":
        remarks.append("TQ_MODE=full_tq: vLLM's TurboQuant has only one mode")
    ignored = [name for name in WITHOUT_EFFECT if name in settings.given]
    if ignored:
        remarks.append(f"{' and '.join(ignored)} ignored: vLLM's TurboQuant has no such option")
    return chosen, remarks


def _flag(flag: str, value: object, vllm_default: str) -> list[str]:
    if value is None or (not isinstance(value, dict) and str(value) == vllm_default):
        return []
    if value is True:
        return [flag]
    if value is False:
        # Off needs no flag unless vLLM's default is on.
        return [f"--no-{flag[2:]}"] if vllm_default == "True" else []
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]


def _speculative(image: Image, settings: Settings, cache: str, *, own: bool) -> dict[str, Any] | None:
    drafter = settings.text("DFLASH_DRAFTER")
    if not drafter or (not own and "DFLASH_DRAFTER" not in settings.given):
        return None
    known = next((entry for entry in image.drafters if entry["repo"] == drafter), {})
    tokens = settings.number("DFLASH_NUM_SPEC_TOKENS")
    if "DFLASH_NUM_SPEC_TOKENS" not in settings.given:
        tokens = known.get("tokens") or tokens
    config: dict[str, Any] = {
        "method": known.get("method", "dflash"),
        "model": drafter,
        "num_speculative_tokens": tokens or 15,
    }
    backend = settings.text("DRAFT_ATTENTION_BACKEND")
    if "DRAFT_ATTENTION_BACKEND" not in settings.given:
        backend = known.get("attention_backend") or backend
    if backend and backend != "auto" and image.at_least("0.21"):
        config["attention_backend"] = backend
    if known.get("revision"):
        config["revision"] = known["revision"]
    if cache and cache != "auto" and image.at_least("0.26"):
        # Since 0.22 the drafter inherits the model's data type, which its FlashAttention (FA2) cannot read.
        config["kv_cache_dtype"] = "auto"
    return config


def _given_speculative(settings: Settings) -> dict[str, Any] | None:
    text = option(settings.extra, "--speculative-config", "-sc")
    if text is None:
        return None
    both = [name for name in DRAFT_SETTINGS if name in settings.given]
    if both:
        raise ContradictionError(
            f"{both[0]} and --speculative-config both describe the drafter.",
            setting=both[0],
            value=settings.text(both[0]) or "off",
            allowed="one of the two",
            remedy=f"Leave out either {both[0]} or --speculative-config.",
        )
    try:
        value = json.loads(text)
    except ValueError:
        return {"method": "given"}
    return value if isinstance(value, dict) else {"method": "given"}
