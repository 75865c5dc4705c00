"""SGLang: how settings become `sglang serve`, and what it logs and measures.

It reads its API key from its command line or from a configuration file, and logs it. Arguments are in every list of
processes, so the key travels in a file that only the user of the container can read. The hook in SGLang's processes
hides it in their logs.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from .. import command as commands
from .. import private_files, rules
from ..command import Command, Parallel, option
from ..errors import StartError
from ..image import Image, Setting
from ..keys import Secrets
from ..redaction import HIDDEN, KEY_FLAG, is_flag
from ..settings import Settings, Value
from ..timeline import Moments, timed
from .server import Choices, Drafts, Handover, LogLines, Server, hook_variables, work

ALWAYS = ("--model-type", "llm", "--enable-metrics")
"""No search of the hub for a diffusion model; /metrics as vLLM has it."""
SPECIAL = ("MODEL", "MODEL_PATH", "SERVED_MODEL_NAME")
PARALLEL = Parallel(
    ("--tp-size", "--tensor-parallel-size", "--tp"), ("--pp-size", "--pipeline-parallel-size", "--pp"), ()
)
"""Its replicas are on one node; attention that is data parallel (--attn-dp-size) takes GPUs of the tensor's."""


def build(image: Image, settings: Settings) -> Command:
    check(settings.extra, settings.secrets)
    begun, own = commands.begun(image, settings, "--model-path")
    words = [*begun.arguments]
    for setting in image.settings.values():
        if setting.name not in SPECIAL:
            words += _words(setting, settings)
    if own:
        words += commands.more_flags(image, settings)
    speculative = _given_speculative(settings)
    described = commands.drafter_of(image, settings, own=own) if speculative is None else None
    if described:
        described["attention_backend"] = spelled("DRAFT_ATTENTION_BACKEND", described["attention_backend"])
    _refuse(image, settings, begun.served_names, described)
    words += _speculative_words(image, described) if described else []
    words += [*ALWAYS, *node_words(settings), *settings.extra]
    cache = str(spelled("KV_CACHE_DTYPE", settings.text("KV_CACHE_DTYPE")))
    return begun._replace(arguments=tuple(words), speculative=speculative or described, cache_dtype=cache)


def node_words(settings: Settings) -> list[str]:
    store = f"{settings.text('HEAD_ADDRESS')}:{settings.text('HEAD_PORT')}"
    joining = ["--nnodes", settings.text("NODES"), "--node-rank", settings.text("NODE_RANK"), "--dist-init-addr", store]
    return commands.node_words(settings, joining, PARALLEL)


def spelled(name: str, value: Value) -> Value:
    if not isinstance(value, str):
        return value
    own: dict[str, str] = rules.of_server("sglang")["spelled"].get(name, {})
    return own.get(value, value)


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
        commands.flag_words(setting.flag, spelled(setting.name, value), setting.server_default) if setting.flag else []
    )


def _speculative_words(image: Image, config: dict[str, Any]) -> list[str]:
    words = ["--speculative-algorithm", rules.of_server("sglang")["methods"][config["method"]]]
    tokens = config["num_speculative_tokens"]
    if config["method"] != "mtp" or config["model"] != image.model["model"]:
        words += ["--speculative-draft-model-path", config["model"]]
        if config["revision"]:
            words += ["--speculative-draft-model-revision", config["revision"]]
    if config["method"] == "mtp":
        # A chain of drafts: SGLang's own default for some models is a tree, which linear attention does not take.
        words += ["--speculative-num-steps", str(tokens), "--speculative-eagle-topk", "1"]
    # SGLang counts the token that verifies the draft, vLLM does not.
    words += ["--speculative-num-draft-tokens", str(tokens + 1)]
    if config["attention_backend"] != "auto":
        words += ["--speculative-draft-attention-backend", config["attention_backend"]]
    return words


def _given_speculative(settings: Settings) -> dict[str, Any] | None:
    method = option(settings.extra, "--speculative-algorithm")
    if method is None:
        return None
    commands.refuse_second_drafter(settings, "--speculative-algorithm")
    model = option(settings.extra, "--speculative-draft-model-path", "--speculative-draft-model")
    backend = option(settings.extra, "--speculative-draft-attention-backend")
    return {"method": method.lower(), "model": model or "", "attention_backend": backend or "auto"}


def _refuse(image: Image, settings: Settings, names: tuple[str, ...], drafter: dict[str, Any] | None) -> None:
    values = {
        "version": image.version,
        "served_names": ",".join(names),
        "several_names": len(names) > 1,
        "method": drafter["method"] if drafter else "",
        "drafter": drafter["model"] if drafter else "",
    }
    facts = rules.Facts(values, settings.given, image.at_least)
    for rule in rules.matching(rules.of_server("sglang")["refusals"], facts):
        raise StartError(rule.pop("error"), rule.pop("what"), **rule)


READ, BEGIN, END, READY = "server_args=", "Load weight begin", "Load weight end", "max_total_num_tokens="
LINES = LogLines(
    telling=("backend by default", "default attention backend", "draft attention backend"),
    steps=(READ, BEGIN, END, READY),
)
_MODEL = re.compile(r"Use (\w+) (?:backend by default|as default attention backend)")
_DRAFT = re.compile(r"draft attention backend to (\w+)")
WORK = re.compile(
    rb"^sglang:(?:(realtime_tokens_total)|num_(running|queue)_reqs)(?:\{[^}]*\})? ([0-9.e+-]+)", re.MULTILINE
)
"""Its other counters of tokens grow only as requests end, which a batch of long ones may not do for an hour."""
_METRIC = re.compile(
    rb"^sglang:(spec_verify_calls_total|spec_num_draft_tokens|generation_tokens_total)(?:\{[^}]*\})? ([0-9.e+]+)",
    re.MULTILINE,
)


def moments(lines: Iterable[str], found: Moments) -> Moments:
    for moment, text in timed(lines):
        if text.startswith(READ) and found.imported is None:
            found = found._replace(imported=moment)
        elif text.startswith(BEGIN) and found.loading is None:
            found = found._replace(loading=moment)
        elif text.startswith(END):
            found = found._replace(loaded=moment)
        elif text.startswith(READY):
            found = found._replace(captured=moment)
    return found


def choices(lines: Iterable[str]) -> Choices:
    """Find the attention backends; SGLang does not log those that its flags name."""
    text = "\n".join(lines)
    found = [*_MODEL.findall(text), *_DRAFT.findall(text)]
    return Choices(tuple(dict.fromkeys(found)), (), ())


def drafted(metrics: bytes) -> Drafts:
    """Read what SGLang counts of its drafts; not by position.

    Every draft is verified by one call, which gives one token more than it accepts.
    """
    calls = generated = block = 0.0
    for name, value in _METRIC.findall(metrics):
        if name == b"spec_verify_calls_total":
            calls += float(value)
        elif name == b"generation_tokens_total":
            generated += float(value)
        else:
            block = max(block, float(value))
    return Drafts(calls, calls * max(0.0, block - 1), max(0.0, generated - calls), generated)


ADMIN_FLAG = "--admin-api-key"
CONFIG_FLAG = "--config"
SHORTEST = len("--ap")


def check(words: Sequence[str], secrets: Secrets) -> None:
    """Refuse keys that SGLang cannot take, or would show."""
    names = [word.partition("=")[0].replace("_", "-") for word in words]
    cut = [name for name in names if len(name) >= SHORTEST]  # argparse takes what is not ambiguous
    if any(ADMIN_FLAG.startswith(name) for name in cut):
        what = f"{ADMIN_FLAG} would be in every list of processes, and in SGLang's log."
        remedy = f"Leave {ADMIN_FLAG} out; with a key, the endpoints for administrators need it too."
        allowed = "one key for everything, in VLLM_API_KEY_FILE"
        raise StartError("bad-value", what, "EXTRA_ARGS", ADMIN_FLAG, allowed, remedy=remedy)
    if any(KEY_FLAG.startswith(name) for name in cut) or secrets.api_key.startswith("-"):
        what = "SGLang takes a key that does not begin with a hyphen; and the flag is not to be cut short."
        remedy = "Make a key with `openssl rand -hex 32`, and put it into VLLM_API_KEY_FILE."
        raise StartError("bad-value", what, KEY_FLAG, HIDDEN, "one key", remedy=remedy)
    if secrets.api_key and CONFIG_FLAG in names:
        what = f"SGLang reads one file of {CONFIG_FLAG}, and the key needs it."
        allowed = "a key, or a configuration file of your own"
        remedy = "Give the options of the file as flags, in EXTRA_ARGS."
        raise StartError("contradiction", what, "EXTRA_ARGS", CONFIG_FLAG, allowed, remedy=remedy)


def hand_over(words: Sequence[str], secrets: Secrets, variables: Mapping[str, str]) -> Handover:
    """Write the key to a file for SGLang, and have the hook hide it in the log."""
    check(words, secrets)
    environment = secrets.environment(variables)
    if not secrets.api_key:
        return Handover(tuple(words), environment)
    try:
        file = private_files.write(
            f"key.{os.getpid()}.yaml", json.dumps({"api-key": secrets.api_key}, ensure_ascii=False), secret=True
        )
    except OSError as error:
        what = f"The API key cannot be written to a file for SGLang: {error.strerror or error}."
        allowed = f"a folder in {private_files.PLACE} that belongs to the container's user"
        remedy = f"Start the container with `--tmpfs {private_files.PLACE}`, or writable."
        raise StartError("bad-key-file", what, "VLLM_API_KEY", "", allowed, remedy=remedy) from None
    environment |= hook_variables("sglang", LINES, "", environment)
    return Handover((*words, CONFIG_FLAG, file), environment, file)


def _facts(settings: Settings, built: Command) -> dict[str, object]:
    drafter, extra = built.speculative or {}, settings.extra
    return {
        "attention": spelled("ATTENTION_BACKEND", settings.text("ATTENTION_BACKEND")),
        "draft_backend": str(drafter.get("attention_backend", "")),
        "drafter": str(drafter.get("model", "")),
        "method": drafter.get("method", ""),
        "stages": option(extra, *PARALLEL.stages) or "1",
        "replicas": option(extra, "--dp-size", "--data-parallel-size", "--dp") or "1",
        "splits_attention": any(is_flag(word, "--enable-dp-attention") for word in extra),
        "grammar": option(extra, "--grammar-backend") or "",
    }


SERVER = Server(
    name="sglang",
    all_flags="sglang serve --model-type llm --help",
    argument_files=("srt/server_args.py", "srt/arg_groups/fields", "cli/serve.py"),
    parallel=PARALLEL,
    stretching=("--json-model-override-args",),
    stretching_variable="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
    # Its processes talk over sockets; NCCL needs room for several GPUs.
    shared_memory=64 * 1024 * 1024,
    log=LINES,
    reads_key=False,
    help_environment={},  # without a driver its kernels cannot even be imported
    # Its /health asks the engine for a token: it would call a step of some seconds unhealthy, and keep the GPU awake.
    watched={"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"},
    address_variable="SGLANG_HOST_IP",
    node_words=node_words,
    build=build,
    passing=lambda image, words: 0,  # noqa: ARG005 - its layers with a window have a share of their own
    facts=_facts,
    without_api=lambda words: (option(words, "--node-rank") or "0") != "0",
    hand_over=hand_over,
    moments=moments,
    choices=choices,
    work=partial(work, WORK),
    from_disk=lambda _: 0.0,
    drafted=drafted,
)
