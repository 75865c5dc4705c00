"""Builds the `sglang serve` command from the settings."""

from typing import Any

from ... import command as commands
from ... import rules
from ...command import Command, option
from ...errors import StartError
from ...image import Image, Setting
from ...settings import Settings, Value
from . import keys

ALWAYS = ("--model-type", "llm", "--enable-metrics")
"""No search of the hub for a diffusion model; /metrics as vLLM has it."""
SPECIAL = ("MODEL", "MODEL_PATH", "SERVED_MODEL_NAME")
PARALLEL = (("--tp-size", "--tensor-parallel-size", "--tp"), ("--pp-size", "--pipeline-parallel-size", "--pp"))
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
    _refuse_foreign(image, settings)
    keys.check(settings.extra, settings.secrets)
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
            what = f"{flag} is a flag of vLLM; this image serves with SGLang {image.version}."
            allowed, remedy = f"flags of `sglang serve`; here {instead}", f"Use {instead}, or an image with vLLM."
            raise StartError("not-in-this-server", what, "EXTRA_ARGS", flag, allowed, remedy=remedy)
