"""Checks the model, its drafter, the flags, combinations of settings and the API key."""

import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import partial

from . import checkpoint, rules, splitting
from . import flags as server_flags
from .command import option
from .findings import FAIL, OK, SKIPPED, WARN, Finding, Start
from .redaction import KEY_FLAG, is_flag

NEAR = 0.85
"""How similar a variable is to the setting that it is taken for."""
FOREIGN = re.compile("VLLM_|SGL(ANG)?_|HF_|TORCH|CUDA_|NCCL_|NVIDIA_|(IMAGE)?FACTORY_")
"""Beginnings of variables that others read; `keys` finds misspelt keys among them."""
LOOPBACK = ("127.", "::1", "localhost")

_failed = partial(Finding, "model", FAIL)


def model(start: Start) -> Iterator[Finding]:
    yield from _template(start)
    yield from _context(start)
    model, folder = start.command.model, start.folder
    if folder is None:
        offline = os.environ.get("HF_HUB_OFFLINE", "") in {"1", "true", "yes", "on"}
        detail = f"{model} is not downloaded yet" + (", and HF_HUB_OFFLINE is set" if offline else "")
        remedy = "Unset HF_HUB_OFFLINE, or mount the model and set MODEL_PATH."
        yield Finding("model", FAIL if offline else OK, detail, "MODEL", model, remedy=remedy)
        return
    setting = "MODEL_PATH" if start.settings.text("MODEL_PATH") else "MODEL"
    if not checkpoint.is_folder(folder):
        remedy = f"Mount the model: -v /path/on/the/host:{folder}:ro"
        detail = f"{folder} does not exist in the container"
        yield _failed(detail, setting, folder, "a folder in the container", remedy)
        return
    dummy = start.settings.text("LOAD_FORMAT") == "dummy"
    missing = checkpoint.missing_files(folder, weights=not dummy)
    # The next download completes an unfinished snapshot.
    if missing and checkpoint.is_path(model):
        remedy = "Download the model again; the last download was probably interrupted."
        detail = f"{folder} lacks {checkpoint.some(missing)}"
        yield _failed(detail, setting, folder, "a complete model folder", remedy)
    else:
        yield Finding("model", OK, folder)


def _context(start: Start) -> Iterator[Finding]:
    length, longest = start.settings.number("MAX_MODEL_LEN"), start.needs().context
    names = (word.partition("=")[0].replace("_", "-") for word in start.settings.extra)
    stretched = any(name in start.server.stretching for name in names)
    permitted = stretched or start.server.stretching_variable in os.environ
    if length and longest and length > longest and not permitted:
        detail = f"the model's context is limited to {longest:,} tokens"
        remedy = f"Set MAX_MODEL_LEN={longest} or lower."
        yield _failed(detail, "MAX_MODEL_LEN", str(length), f"up to {longest}", remedy)


def _template(start: Start) -> Iterator[Finding]:
    path = start.settings.text("CHAT_TEMPLATE")
    # Servers also accept the template itself instead of a path.
    if path and "{" not in path and not os.path.isfile(path):  # noqa: PTH113 - see is_folder
        remedy = f"Mount it: -v /path/on/the/host:{path}:ro"
        detail = f"the chat template {path} does not exist in the container"
        yield _failed(detail, "CHAT_TEMPLATE", path, "a Jinja file in the container", remedy)


def drafter(start: Start) -> list[Finding]:
    speculative = start.command.speculative
    if not speculative or not speculative.get("model"):
        return [Finding("drafter", OK, "none")]
    drafter, fault = str(speculative["model"]), ""
    folder = checkpoint.locate(drafter, str(speculative.get("revision", "")), start.cache)
    draft, target = checkpoint.config_of(folder), start.config
    if checkpoint.is_path(drafter) and draft is None:
        fault = f"{drafter} has no config.json"
    elif draft and target and (one := draft.get("vocab_size")) != (other := target.get("vocab_size")):
        fault = f"its vocabulary has {one} tokens, the model's {other}"
    elif draft and target and (one := draft.get("hidden_size")) != (other := target.get("hidden_size")):
        fault = f"its hidden size is {one}, the model's {other}"
    if fault:
        allowed = "a drafter that was trained for the model"
        remedy = "Set DFLASH_DRAFTER to the model's own drafter, or to off."
        return [Finding("drafter", FAIL, fault, "DFLASH_DRAFTER", drafter, allowed, remedy)]
    if start.own_model and drafter in {entry["repo"] for entry in start.image.drafters}:
        return [Finding("drafter", OK, f"{drafter} was trained for this model")]
    if draft and target:
        return [Finding("drafter", OK, f"{drafter} has the model's vocabulary and hidden size")]
    detail = f"{drafter} may not fit {start.command.model}: it cannot be checked before the download"
    remedy = "Use a drafter that was trained for this model, or set DFLASH_DRAFTER=off."
    return [Finding("drafter", WARN, detail, "DFLASH_DRAFTER", drafter, remedy=remedy)]


def flags(start: Start) -> list[Finding]:
    server, version = start.image.title, start.image.version
    if tools := _tool_choice(start):
        return [tools]
    if start.package is None:
        return [Finding("flags", SKIPPED, f"{server} is not installed here")]
    known = server_flags.known(start.package, start.server.argument_files)
    unknown = server_flags.unknown(start.command.arguments, known)
    if unknown:
        detail = f"{server} {version} has no flag {', '.join(unknown)}"
        allowed = f"the flags in `{start.server.all_flags}`"
        meant = server_flags.nearest(unknown[0], known)
        remedy = f"Did you mean {meant}?" if meant else f"Correct the flag, or use an image whose {server} has it."
        return [Finding("flags", FAIL, detail, "EXTRA_ARGS", unknown[0], allowed, remedy)]
    count = sum(word.startswith("--") for word in start.command.arguments)
    return [Finding("flags", OK, f"{server} {version} supports all {count}")]


def _tool_choice(start: Start) -> Finding | None:
    """Refuse automatic tool choice without a parser: vLLM ends after its imports, SGLang answers calls as text."""
    words, chosen, parser = start.command.arguments, start.settings, "TOOL_CALL_PARSER"
    asked = "ENABLE_AUTO_TOOL_CHOICE" in chosen.given and chosen.values["ENABLE_AUTO_TOOL_CHOICE"] is True
    asked = asked or any(is_flag(word, "--enable-auto-tool-choice") for word in words)
    if not asked or option(words, "--tool-call-parser") is not None:
        return None
    own = start.image.settings[parser].default if start.own_model else ""
    known = (name for part, name in rules.common()["parsers"].items() if part in start.command.model.lower())
    name = own if own not in {"", "off"} else next(known, "")
    remedy = f"Set {parser}={name}" if name else f"Set {parser} to the one that the model's card names"
    detail = f"{start.image.title} needs a parser for the tool calls of {start.command.model}"
    return Finding("flags", FAIL, detail, parser, "off", name, f"{remedy}, or leave out ENABLE_AUTO_TOOL_CHOICE.")


def combination(start: Start) -> Iterator[Finding]:
    gpu = start.readings.gpus[0].capability if start.readings.gpus else start.image.capability
    shape = checkpoint.shape(start.config)
    facts = start.image.facts if start.own_model else {}
    hybrid = shape.hybrid if shape else bool((facts.get("memory") or {}).get("hybrid"))
    more = start.server.facts(start.settings, start.command)
    more |= {"capability": gpu, "hybrid": hybrid, "model": start.command.model}
    found = [Finding("combination", **rule) for rule in start.matching("combinations", more)]
    found += splitting.check(start)
    server = f"{start.image.title} {start.image.version}"
    yield from found or [Finding("combination", OK, f"none that is known to fail with {server}")]


def settings(start: Start) -> Iterator[Finding]:
    """Look for settings that do nothing: misspelt ones, which the program ignores, and those that need another."""
    found = []
    for name, meant in _misspelt({*start.image.settings, *start.image.refused}):
        detail = f"there is no setting {name}: it has no effect"
        found.append(Finding("settings", WARN, detail, name, os.environ[name], meant, f"Did you mean {meant}?"))
    gone = start.server.rules["gone"]
    for name in (name for name in os.environ if name in gone):
        detail = f"{name} has no effect: {gone[name]}"
        found.append(Finding("settings", WARN, detail, name, os.environ[name], remedy=f"Leave {name} out."))
    for name, why in _idle(start):
        detail, remedy = f"{name} has no effect: {why}", f"Leave {name} out."
        found.append(Finding("settings", WARN, detail, name, start.settings.text(name), remedy=remedy))
    yield from found or [Finding("settings", OK, "none is misspelt or without effect")]


def _idle(start: Start) -> Iterator[tuple[str, str]]:
    """Yield the given settings that nothing reads here, except those that only switch something off."""
    chosen = start.settings
    more = {"unified": start.readings.unified, "key": chosen.secrets.api_key}
    facts = rules.Facts({**chosen.values, **more}, chosen.given, start.image.at_least)
    for rule in rules.common()["without_effect"]:
        names = [name for name in rule["settings"] if name in chosen.given and chosen.values[name]]
        yield from ((name, rule["why"]) for name in names if not rules.holds(rule["unless"], facts))


def _misspelt(known: set[str]) -> Iterator[tuple[str, str]]:
    for name in os.environ:
        word = name.upper().replace("-", "_")
        near = get_close_matches(word, known, n=1, cutoff=NEAR)
        # Letters may have changed places.
        near += [setting for setting in known if sorted(setting) == sorted(word)]
        if near and name not in known and not FOREIGN.match(name):
            yield name, near[0]


def api_key(start: Start) -> Iterator[Finding]:
    """Warn about a key that others can read, and about none where others can reach the server."""
    secrets = start.settings.secrets
    for flag in secrets.flags:
        detail = f"everyone who may run `docker inspect` can read the value of {flag}"
        remedy = "Set VLLM_API_KEY_FILE instead." if flag == KEY_FLAG else "Log in with `hf auth login` instead."
        yield Finding("api-key", WARN, detail, setting="EXTRA_ARGS", remedy=remedy)
    host = option(start.command.arguments, "--host") or start.settings.text("HOST")
    if start.server.without_api(start.command.arguments):
        yield Finding("api-key", OK, "not needed: this node serves no API")
    elif secrets.api_key:
        yield Finding("api-key", OK, "required")
    elif host.startswith(LOOPBACK):
        yield Finding("api-key", OK, f"none, and {host} is for this machine alone")
    else:
        remedy = "Set VLLM_API_KEY_FILE; or HOST=127.0.0.1, if only this machine (with --network host) is to use it."
        yield Finding("api-key", WARN, "none: anyone who reaches the port can use the server", remedy=remedy)
