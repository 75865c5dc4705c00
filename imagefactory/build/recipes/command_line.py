"""Takes the command of a recipe apart: server, model, flags and variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from imagefactory.build.recipes.recipe_file import Recipe
from imagefactory.errors.recipes import RecipeNotImportableError
from imagefactory.locks.server_flags import FlagLock
from imagefactory.servers.known import SERVERS
from imagefactory.servers.server import Server

STARTS: Final[Mapping[tuple[str, ...], str]] = {
    ("vllm", "serve"): "vllm",
    ("sglang", "serve"): "sglang",
    ("-m", "vllm.entrypoints.openai.api_server"): "vllm",
    ("-m", "sglang.launch_server"): "sglang",
}
RUNTIMES: Final = {"vllm": "vllm", "eugr-vllm": "vllm", "sglang": "sglang", "": "vllm"}
SHORT: Final = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
    "-sc": "--speculative-config",
}
LAUNCHERS_OWN: Final = ("tensor_parallel", "pipeline_parallel", "data_parallel", "model")
"""Defaults that are the launcher's, beside those of the server."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass
class CommandLine:
    """What a recipe starts."""

    server: Server
    model: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    """True for a switch, False for its opposite, else text, or what JSON stands for."""


def server_of_recipe(recipe: Recipe) -> Server:
    """Return the server that a recipe starts; raise an error if the factory has no images of it."""
    _, words = _variables(recipe.words)
    name: str | None
    if words:
        name = STARTS.get(tuple(words[:2])) or STARTS.get(tuple(words[1:3]))
    else:
        runtime = str(recipe.data.get("runtime") or "")
        name = RUNTIMES.get(re.sub(r"^vllm-(ray|distributed)$", "vllm", runtime))
    if name is None:
        started = " ".join(words[:2]) or recipe.data.get("runtime")
        raise RecipeNotImportableError(
            f"{recipe.path.name} does not start a server of the factory.",
            where=recipe.path,
            why=f"It starts {started}; images run {' or '.join(server.title for server in SERVERS.values())}.",
            fix="Look for a recipe of the same model with one of these servers.",
        )
    return SERVERS[str(name)]


def take_apart(recipe: Recipe, known: FlagLock | None) -> CommandLine:
    """Return the command of a recipe in parts; `known` tells which flags need no value."""
    server = server_of_recipe(recipe)
    variables, words = _variables(recipe.words)
    line = CommandLine(server, variables=variables)
    if words:
        rest = words[2:] if tuple(words[:2]) in STARTS else words[3:]
        if rest and not rest[0].startswith("-"):
            line.model, rest = rest[0], rest[1:]
        _read_flags(line, rest, known)
    else:
        _read_flags(line, list(_words_of_defaults(server, recipe.defaults)), known)
    flags = [line.flags.pop(name, None) for name in ("--model", "--model-path")]
    named = next((str(value) for value in flags if value), "")
    line.model = line.model or named or str(recipe.data.get("model") or "")
    return line


def json_value(text: object) -> object:
    """Return what JSON stands for; the text itself if it is none."""
    if not isinstance(text, str):
        return text
    try:
        found: object = json.loads(text)
    except ValueError:
        return text
    return found


def _variables(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split off the variables that a command begins with."""
    rest = list(words)
    found: dict[str, str] = {}
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0])):
        found[match[1]] = match[2]
        rest.pop(0)
    return found, rest


def _read_flags(line: CommandLine, words: Sequence[str], known: FlagLock | None) -> None:
    position = 0
    while position < len(words):
        name, equals, inline = words[position].partition("=")
        position += 1
        if not name.startswith("-"):
            continue  # a second model, which the server would refuse
        flag = SHORT.get(name, name)
        values = [inline] if equals else []
        takes_none = known is not None and known.is_switch(_dashed(flag))
        while not equals and not takes_none and position < len(words) and not _is_flag(words[position]):
            values.append(words[position])
            position += 1
        _set(line.flags, _dashed(flag), ",".join(values) if values else not flag.startswith("--no-"))


def _set(flags: dict[str, Any], flag: str, value: object) -> None:
    base, dot, key = flag.partition(".")
    if dot:
        whole = json_value(flags.get(base, "{}"))
        flags[base] = (whole if isinstance(whole, dict) else {}) | {key.replace("-", "_"): json_value(value)}
    else:
        flags[f"--{flag[5:]}" if value is False else flag] = value


def _dashed(flag: str) -> str:
    base, dot, key = flag.partition(".")
    return base.replace("_", "-") + dot + key


def _is_flag(word: str) -> bool:
    return re.match(r"--?[A-Za-z]", word) is not None


def _words_of_defaults(server: Server, defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags that sparkrun makes from defaults where a recipe has no command."""
    spelled = {setting.key: setting.flag for setting in server.settings if setting.flag}
    for name, value in defaults.items():
        if name not in LAUNCHERS_OWN and value not in (None, False):
            yield spelled.get(name) or f"--{name.replace('_', '-')}"
            if value is not True:
                yield json.dumps(value) if isinstance(value, dict | list) else str(value)
