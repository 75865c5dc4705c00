"""Builds the `vllm serve` command from the settings."""

import json
from typing import Any

from ... import command as commands
from ... import rules
from ...command import Command, option
from ...image import Image
from ...settings import Settings

SPECIAL = ("MODEL", "MODEL_PATH", "SERVED_MODEL_NAME", "KV_CACHE_DTYPE")
PARALLEL = (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"))
EXECUTOR = "--distributed-executor-backend"
WITHOUT_EFFECT = ("TQ_RING_CAPACITY", "TQ_INITIAL_LAYERS")


def build(image: Image, settings: Settings) -> Command:
    begun, own = commands.begun(image, settings)
    cache, remarks = _turboquant(settings)
    cache = cache or settings.text("KV_CACHE_DTYPE")
    words, done = [*begun.arguments], set(SPECIAL)
    # TurboQuant is itself an attention backend; vLLM refuses any other beside it.
    backend = settings.text("ATTENTION_BACKEND")
    if cache.startswith("turboquant_") and backend and "ATTENTION_BACKEND" not in settings.given:
        remarks.append("TurboQuant brings its own attention: ATTENTION_BACKEND is not used")
        done.add("ATTENTION_BACKEND")
    for setting in image.settings.values():
        if setting.flag and setting.name not in done:
            words += commands.flag_words(setting.flag, settings.values.get(setting.name), setting.server_default)
    if own:
        words += commands.more_flags(image, settings)
    if cache and cache != "auto":
        words += ["--kv-cache-dtype", cache]
    speculative = _given_speculative(settings)
    if speculative is None:
        speculative = _speculative(image, settings, cache, own=own)
        words += ["--speculative-config", json.dumps(speculative)] if speculative else []
    words += [*node_words(settings), *settings.extra]
    remarks = [*begun.remarks, *remarks]
    return begun._replace(arguments=tuple(words), speculative=speculative, cache_dtype=cache, remarks=tuple(remarks))


def node_words(settings: Settings) -> list[str]:
    rank = settings.text("NODE_RANK")
    joining = ["--nnodes", settings.text("NODES"), "--node-rank", rank, *(["--headless"] if rank != "0" else [])]
    joining += ["--master-addr", settings.text("HEAD_ADDRESS"), "--master-port", settings.text("HEAD_PORT")]
    if option(settings.extra, EXECUTOR) is None:
        joining += [EXECUTOR, "mp"]
    return commands.node_words(settings, joining, PARALLEL)


def _turboquant(settings: Settings) -> tuple[str, list[str]]:
    """Return the data type of the KV cache (empty: uncompressed), with remarks for the user.

    The settings are those of a plugin of the same name; vLLM has four fixed data types instead.
    """
    if settings.values.get("ENABLE_TURBOQUANT") is not True:
        return "", []
    mode = settings.text("TQ_MODE") or "hybrid"
    if mode in {"off", "capture_only"}:
        return "", [f"TQ_MODE={mode}: the KV cache is not compressed"]
    keys, values = settings.number("TQ_KEY_BITS") or 4, settings.number("TQ_VALUE_BITS") or 4
    known = {tuple(map(int, bits.split("/"))): name for bits, name in rules.of_server("vllm")["turboquant"].items()}
    enough = [bits for bits in known if bits[0] >= keys and bits[1] >= values]
    chosen = known[min(enough, key=sum, default=(8, 4))]
    remarks = []
    if (keys, values) not in known:
        remarks.append(
            f"vLLM's TurboQuant has no {keys}-bit keys with {values}-bit values; {chosen}, the nearest, is used"
        )
    if mode == "full_tq":
        remarks.append("TQ_MODE=full_tq: vLLM's TurboQuant has only one mode")
    ignored = [name for name in WITHOUT_EFFECT if name in settings.given]
    if ignored:
        remarks.append(f"{' and '.join(ignored)} ignored: vLLM's TurboQuant has no such option")
    return chosen, remarks


def _speculative(image: Image, settings: Settings, cache: str, *, own: bool) -> dict[str, Any] | None:
    drafter = commands.drafter_of(image, settings, own=own)
    if drafter is None:
        return None
    backend, revision, more = drafter.pop("attention_backend"), drafter.pop("revision"), drafter.pop("config")
    if backend != "auto" and image.at_least("0.21"):
        drafter["attention_backend"] = backend
    if revision:
        drafter["revision"] = revision
    if cache and cache != "auto" and drafter["method"] != "mtp" and image.at_least("0.26"):
        # Since 0.22 the drafter inherits the model's data type, which its FlashAttention (FA2) cannot read. MTP drafts
        # with the model's own attention.
        drafter["kv_cache_dtype"] = "auto"
    return {**drafter, **more}


def _given_speculative(settings: Settings) -> dict[str, Any] | None:
    text = option(settings.extra, "--speculative-config", "-sc")
    if text is None:
        return None
    commands.refuse_second_drafter(settings, "--speculative-config")
    try:
        value = json.loads(text)
    except ValueError:
        return {"method": "given"}
    return value if isinstance(value, dict) else {"method": "given"}
