"""vLLM: how settings become `vllm serve`, and what it logs and measures."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import command as commands
from .. import kv_disk, rules
from ..command import Command, Parallel, option
from ..errors import StartError
from ..image import Image
from ..keys import Secrets
from ..redaction import is_flag
from ..settings import Settings
from ..timeline import Moments, timed
from .server import Choices, Drafts, Handover, LogLines, Server, Work, hook_variables, work

SPECIAL = ("MODEL", "MODEL_PATH", "SERVED_MODEL_NAME", "KV_CACHE_DTYPE")
PARALLEL = Parallel(
    ("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"), ("--data-parallel-size", "-dp")
)
EXECUTOR = "--distributed-executor-backend"
BATCH = "MAX_NUM_BATCHED_TOKENS"
STEP, SMALL_STEP, SMALL_GPUS = 8192, 2048, {"8.0", "12.0"}
"""The tokens of a step where nobody says how many: vLLM takes fewer on an A100, and with less than 70 GiB."""
BACKENDS = ("--moe-backend", "--linear-backend", "--attention-backend")
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
    if (most := _most_in_a_step(settings)) is not None:
        settings = settings._replace(values={**settings.values, BATCH: most})
        remarks.append(f"{BATCH} is {most:,}: that is all that MAX_NUM_SEQS requests of MAX_MODEL_LEN tokens hold")
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
    if on_disk := kv_disk.config(image, settings, words[1:]):
        # It has no names for what it does not keep for others.
        words += [] if settings.values.get("ENABLE_PREFIX_CACHING") else ["--enable-prefix-caching"]
        words += [kv_disk.FLAG, json.dumps(on_disk)]
    remarks = [*begun.remarks, *remarks]
    return begun._replace(arguments=tuple(words), speculative=speculative, cache_dtype=cache, remarks=tuple(remarks))


def node_words(settings: Settings) -> list[str]:
    rank = settings.text("NODE_RANK")
    joining = ["--nnodes", settings.text("NODES"), "--node-rank", rank, *(["--headless"] if rank != "0" else [])]
    joining += ["--master-addr", settings.text("HEAD_ADDRESS"), "--master-port", settings.text("HEAD_PORT")]
    if option(settings.extra, EXECUTOR) is None:
        joining += [EXECUTOR, "mp"]
    return commands.node_words(settings, joining, PARALLEL)


def _most_in_a_step(settings: Settings) -> int | None:
    """Return the tokens that all requests hold together, if a step is to process more.

    Before it serves, vLLM tunes FlashInfer with a full step, spread over all requests. If that makes them longer than
    the context, attention reads beyond their block tables: an illegal memory access, which the first request meets.
    """
    step, requests, length = map(settings.number, (BATCH, "MAX_NUM_SEQS", "MAX_MODEL_LEN"))
    whole = (requests or 0) * (length or 0)
    return whole if step and 0 < whole < step else None


def _turboquant(settings: Settings) -> tuple[str, list[str]]:
    """Return the data type of the KV cache (empty: uncompressed), with remarks for the user.

    The settings are those of a plugin of the same name; vLLM has four fixed data types instead.
    """
    if settings.values.get("ENABLE_TURBOQUANT") is not True:
        return "", []
    mode = settings.text("TQ_MODE") or "hybrid"
    if mode == "off":
        return "", ["TQ_MODE=off: the KV cache is not compressed"]
    if mode == "capture_only":
        # It would neither save memory nor cost what it cost with the plugin.
        what = "TQ_MODE=capture_only was a mode of a plugin, which compressed a copy of the cache and did not read it."
        remedy = "Set TQ_MODE=hybrid, which compresses the cache itself, or TQ_MODE=off, which does not."
        raise StartError("not-in-this-server", what, "TQ_MODE", mode, "off, hybrid", remedy=remedy)
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
        remarks.append("TQ_MODE=full_tq: as hybrid, for vLLM's TurboQuant compresses what prompts leave, too")
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
    except (ValueError, RecursionError):
        return {"method": "given"}
    return value if isinstance(value, dict) else {"method": "given"}


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
    rb"^vllm:(?:(iteration_tokens_total_sum|kv_cache_usage_perc)|num_requests_(running|waiting))"
    rb"(?:\{[^}]*\})? ([0-9.e+-]+)",
    re.MULTILINE,
)
"""It counts the tokens of a prompt only once it has read all of it; until then the share of the cache grows."""
_DEFERRED = re.compile(
    rb"^vllm:num_requests_(waiting_by_reason|kv_fetch_by_stage)"
    rb'\{[^}]*(?:reason="deferred"|stage="in_progress")[^}]*\} ([0-9.e+-]+)',
    re.MULTILINE,
)
"""Only a server with a connector for its KV cache has the second."""
_METRIC = re.compile(
    rb"^vllm:(?:spec_decode_num_)?(drafts|draft_tokens|accepted_tokens|generation_tokens)(?:_total)?(?:\{[^}]*\})?"
    rb" ([0-9.e+]+)",
    re.MULTILINE,
)
_FROM_DISK = re.compile(
    rb'^vllm:prompt_tokens_cached_by_source(?:_total)?\{[^}]*source="disk"[^}]*\} ([0-9.e+]+)', re.MULTILINE
)
_POSITION = re.compile(
    rb"^vllm:spec_decode_num_accepted_tokens_per_pos(?:_total)?\{([^}]*)\} ([0-9.e+]+)", re.MULTILINE
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


def _work(metrics: bytes) -> Work:
    sums: dict[bytes, float] = {}
    for name, value in _DEFERRED.findall(metrics):
        sums[name] = sums.get(name, 0.0) + float(value)
    fetched = sums.get(b"kv_fetch_by_stage")
    return work(WORK, metrics)._replace(deferred=sums.get(b"waiting_by_reason", 0.0) if fetched == 0 else 0.0)


def counters(metrics: bytes) -> Drafts:
    found = dict.fromkeys((b"drafts", b"draft_tokens", b"accepted_tokens", b"generation_tokens"), 0.0)
    for name, value in _METRIC.findall(metrics):
        found[name] += float(value)
    positions: dict[int, float] = {}
    for labels, value in _POSITION.findall(metrics):
        if position := re.search(rb'position="(\d{1,4})"', labels):
            positions[int(position[1])] = positions.get(int(position[1]), 0.0) + float(value)
    drafts, tokens, accepted, generated = found.values()
    return Drafts(drafts, tokens, accepted, generated, tuple(positions[number] for number in sorted(positions)))


def _facts(settings: Settings, built: Command) -> dict[str, object]:
    cache, drafter = built.cache_dtype, built.speculative or {}
    backends = {flag: (option(built.arguments, flag) or "").lower() for flag in BACKENDS}
    return {
        "b12x": next((f"{flag} {value}" for flag, value in backends.items() if "b12x" in value), ""),
        "cache": cache if cache != "auto" else "",
        "drafter": str(drafter.get("model", "")) if drafter.get("method") == "dflash" else "",
        "drafts_by": str(drafter.get("method", "")),
        "draft_backend": str(drafter.get("attention_backend", "auto")),
        "draft_cache": str(drafter.get("kv_cache_dtype") or cache),
        "sleeps": any(is_flag(word, "--enable-sleep-mode") for word in settings.extra),
    }


def _passing(image: Image, words: Sequence[str]) -> int:
    """Count as vLLM's SlidingWindowSpec does: what the steps under way compute stays until they end."""
    given = option(words, "--max-num-batched-tokens") or ""
    step = int(given) if given.isdecimal() else SMALL_STEP if image.capability in SMALL_GPUS else STEP
    return step * (2 if image.at_least("0.32.0") else 1)


def _without_api(words: Sequence[str]) -> bool:
    return "--headless" in words or (option(words, "--node-rank", "-r") or "0") != "0"


def _hand_over(words: Sequence[str], secrets: Secrets, variables: Mapping[str, str]) -> Handover:
    """Leave the arguments as they are: vLLM takes its secrets from its environment."""
    environment = secrets.environment(variables)
    kv_disk.forget_stages(words)
    if secrets.api_key or any(kv_disk.MODULE in word for word in words):
        environment |= hook_variables("vllm", LINES, "", environment)
    return Handover(tuple(words), environment)


SERVER = Server(
    name="vllm",
    all_flags="vllm serve --help=all",
    argument_files=(
        "engine/arg_utils.py",
        "entrypoints/openai/cli_args.py",
        "entrypoints/launchers/cli_args.py",
        "entrypoints/common/cli_args.py",
        "entrypoints/cli/serve.py",
    ),
    parallel=PARALLEL,
    stretching=("--hf-overrides", "--rope-scaling"),
    stretching_variable="VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    # Its message queue takes slightly more than 10 chunks of 16 MiB.
    shared_memory=256 * 1024 * 1024,
    log=LINES,
    reads_key=True,
    # Without a GPU it has no help but that for a CPU.
    help_environment={"VLLM_TARGET_DEVICE": "cpu"},
    watched={},
    address_variable="VLLM_HOST_IP",
    node_words=node_words,
    build=build,
    passing=_passing,
    facts=_facts,
    without_api=_without_api,
    hand_over=_hand_over,
    moments=moments,
    choices=choices,
    work=_work,
    drafted=counters,
    from_disk=lambda metrics: sum(map(float, _FROM_DISK.findall(metrics))),
)
