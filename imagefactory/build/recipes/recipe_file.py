"""Reads recipes of eugr/spark-vllm-docker (version 1) and sparkrun (version 2), without running anything of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from imagefactory.errors.recipes import RecipeCommandError, RecipeFormatError
from images.shipped.yamlfile import read_yaml

LARGEST: Final = 1_000_000
REQUIRED: Final = {"1": ("name", "container", "command"), "2": ("model",)}
_BOTH: Final = {
    *(
        "recipe_version",
        "name",
        "description",
        "model",
        "container",
        "command",
        "mods",
        "build_args",
        "defaults",
    ),
    *("env", "cluster_only", "solo_only"),
}
KNOWN: Final = {
    "1": _BOTH,
    "2": _BOTH
    | {
        *(
            "sparkrun_version",
            "model_revision",
            "runtime",
            "runtime_version",
            "mode",
            "min_nodes",
            "max_nodes",
        ),
        *("containers", "runtime_config", "benchmark", "metadata", "pre_exec", "post_exec", "post_commands"),
        *(
            "stop_after_post",
            "builder",
            "builder_config",
            "executor_config",
            "distribution_config",
            "runtime_cache",
        ),
    },
}
"""The keys of each format."""
_NAME = re.compile(r"\{(\w+)\}")
_FORMAT = re.compile(r"\{\{|\}\}|\{(\w+)\}|[{}]")
_OPERATORS = ";&|<>()"


@dataclass(frozen=True)
class Recipe:
    """A recipe, with its command split into words."""

    path: Path
    version: str
    """1 is eugr's format, 2 is sparkrun's."""
    data: Mapping[str, Any]
    words: tuple[str, ...]
    """The command with its defaults filled in; empty if the recipe leaves it to the launcher."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The values that a user may override."""
        return self.data.get("defaults") or {}

    @property
    def unknown_keys(self) -> list[str]:
        """The keys that the format does not have."""
        return sorted(set(self.data) - KNOWN[self.version])


def read_recipe(path: Path) -> Recipe:
    """Read a recipe file; refuse what is no recipe, and commands that need a shell."""
    if path.stat().st_size > LARGEST:
        raise _unreadable(path, f"It is larger than {LARGEST // 1000} kB.")
    data = read_yaml(path).data
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise _unreadable(path, "It is not a mapping of names.")
    version = str(data.get("recipe_version", "2" if {"runtime", "sparkrun_version"} & set(data) else ""))
    if version not in REQUIRED:
        raise _unreadable(path, f"recipe_version is {version or 'missing'}; it has to be 1 or 2.")
    missing = [name for name in REQUIRED[version] if not data.get(name)]
    if missing:
        raise _unreadable(path, f"It lacks {' and '.join(missing)}.")
    for name, kind in (
        ("command", str),
        ("model", str),
        ("defaults", dict),
        ("env", dict),
        ("metadata", dict),
    ):
        if data.get(name) is not None and not isinstance(data[name], kind):
            raise _unreadable(path, f"{name} is not a {'text' if kind is str else 'mapping'}.")
    command = _filled_in(path, version, data) if data.get("command") else ""
    return Recipe(path, version, data, tuple(_split(path, command)))


def _filled_in(path: Path, version: str, data: Mapping[str, Any]) -> str:
    """Return the command with the defaults in place of their {names}."""
    values = {"model": data.get("model", ""), **(data.get("defaults") or {})}

    def value_of(name: str) -> str:
        if not isinstance(values.get(name), str | int | float):
            raise _unreadable(path, f"The command has a {{{name}}}, which defaults do not set.")
        return str(values[name])

    def formatted(found: re.Match[str]) -> str:
        if found[1]:
            return value_of(found[1])
        if len(found[0]) == 1:
            raise _unreadable(path, "The command has a single brace; literal braces are written twice.")
        return found[0][0]

    text = str(data["command"])
    if version == "1":
        return _FORMAT.sub(formatted, text)
    # sparkrun leaves other braces alone.
    return _NAME.sub(lambda found: value_of(found[1]) if found[1] in values else found[0], text)


def _split(path: Path, command: str) -> list[str]:
    """Split a command into words; refuse all that only a shell understands."""
    text = re.sub(r"\\[ \t]*\n", " ", command).strip()
    if shell := _shell_in(text):
        raise RecipeCommandError(
            f"The command of {path.name} is more than one program with its flags.",
            where=path,
            why=f"It contains {shell}, which only a shell understands; recipes are read and never run.",
            fix="Reduce `command` to `vllm serve MODEL` or `sglang serve` with flags; the rest belongs into a mod.",
        )
    try:
        return shlex.split(text)
    except ValueError as error:
        raise _unreadable(path, f"The command cannot be split into words: {error}.") from None


def _shell_in(text: str) -> str:
    """Return the first part of a command that needs a shell; empty if there is none."""
    quote = ""
    previous = " "
    escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif quote:
            if character == quote:
                quote = ""
            elif quote == '"' and character in "$`":
                return repr(character)
        elif character in "'\"":
            quote = character
        elif character in _OPERATORS or character in "$`\n" or (character == "#" and previous.isspace()):
            return "several lines" if character == "\n" else repr(character)
        previous = character
    return ""


def _unreadable(path: Path, why: str) -> RecipeFormatError:
    return RecipeFormatError(
        f"{path.name} is not a recipe that can be read.",
        where=path,
        why=why,
        fix="Recipes have version 1 (eugr/spark-vllm-docker) or 2 (sparkrun); see docs/recipes.md.",
    )
