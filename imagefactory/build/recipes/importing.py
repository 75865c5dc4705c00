"""Turns a recipe into an entry of matrix.yaml, with an account of what has no counterpart."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import yaml
from packaging.version import Version
from pydantic import ValidationError

from imagefactory.build.recipes.command_line import CommandLine, json_value, server_of_recipe, take_apart
from imagefactory.build.recipes.recipe_file import Recipe
from imagefactory.build.recipes.unfit_flags import ONE_NODE, reason_unfit
from imagefactory.errors.recipes import RecipeFormatError, RecipeNotImportableError
from imagefactory.locks.lock import first_problem
from imagefactory.locks.project import Project
from imagefactory.locks.server_flags import FlagLock, flags_of
from imagefactory.matrix.served_model import ServedModel
from imagefactory.matrix.server_names import VLLM, server_name
from imagefactory.servers.setting import Setting

SILENT: Final = ("--host", "--port", "--model-type", "--enable-metrics")
"""Flags that images set themselves."""
WEIGHTS: Final = {
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "autoround": "int4-autoround",
    "awq": "awq",
    "fp8": "fp8",
}
METHODS: Final = ("dflash", "dspark", "eagle3", "mtp")
ELSEWHERE: Final = {
    "mods": "`invoke mods.import` takes a mod over",
    "build_args": "the image is not built from them",
    "pre_exec": "commands in a container are not imported; a mod changes the image instead",
    "post_exec": "commands in a container are not imported",
    "post_commands": "commands on the user's machine are not imported",
    "executor_config": "`docker run` options are the user's",
    "runtime_config": "it is for the launcher",
    "builder": "images are built by the factory",
    "builder_config": "images are built by the factory",
    "benchmark": "images have no benchmark",
    "containers": "images are the factory's own",
    "distribution_config": "it is for the launcher",
    "runtime_cache": "it is for the launcher",
    "model_revision": "`invoke lock --models` pins revisions",
}
"""Keys of recipes that a model's entry has no place for."""
_SECRET = re.compile(r"(TOKEN|KEY|PASSWORD|SECRET)$")
_REPO = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass
class ImportedRecipe:
    """An entry of matrix.yaml, and what it does not say."""

    name: str
    source: str
    entry: dict[str, Any] = field(default_factory=dict)
    account: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the entry as it belongs below `models`."""
        body = yaml.safe_dump(self.entry, sort_keys=False, width=110, allow_unicode=True)
        lines = [f"# From {self.source}.", *body.splitlines()]
        return "\n".join([f"  {self.name}:", *(f"    {line}" for line in lines)]) + "\n"


def import_recipe(project: Project, recipe: Recipe, name: str = "") -> ImportedRecipe:
    """Turn a recipe into the entry of a model; raise an error if no image could serve it."""
    return _Import(project, recipe, name).run()


@dataclass
class _Import:
    project: Project
    recipe: Recipe
    name: str
    kept: dict[str, Any] = field(default_factory=dict)
    """The flags that the entry stands for, to find out which versions have them."""
    least: Version = field(default_factory=lambda: Version("0"))
    """The oldest version whose images have all its settings."""

    @cached_property
    def result(self) -> ImportedRecipe:
        named = self.name or str(self.recipe.data.get("name") or self.recipe.path.stem)
        slug = re.sub(r"[^a-z0-9.]+", "-", named.lower()).strip("-.")
        return ImportedRecipe(slug or "model", self.recipe.path.name)

    @cached_property
    def known(self) -> FlagLock | None:
        """The flags of the newest version of the server."""
        return self.records[-1][1] if self.records else None

    @cached_property
    def records(self) -> list[tuple[Version, FlagLock]]:
        """The recorded versions of the server, oldest first."""
        server = server_of_recipe(self.recipe).name
        found = {
            version.version: flags_of(self.project, name)
            for name, version in self.project.matrix.versions.items()
            if server_name(name) == server and version.release
        }
        return sorted((version, record) for version, record in found.items() if record is not None)

    def run(self) -> ImportedRecipe:
        line = take_apart(self.recipe, self.known)
        self._refuse_clusters()
        if not _REPO.fullmatch(line.model):
            raise RecipeNotImportableError(
                f"{self.recipe.path.name} does not name a model of the hub.",
                where=self.recipe.path,
                why=f"Its model is {line.model or 'missing'!r}.",
                fix="Images serve repositories such as openai/gpt-oss-120b; name one in the recipe.",
            )
        serve, drafter = self._serve(line), self._drafter(line)
        serve |= self._environment(line)
        own, of_server = line.server.name == VLLM, {line.server.name: self._range(line)}
        shape: dict[str, Any] = {"serve": serve} if own else {"serve_on": {line.server.name: serve}}
        self.result.entry = {
            "repo": line.model,
            **of_server,
            "weights": self._weights(line.model),
            **({"drafters": [drafter if own else drafter | of_server]} if drafter else {}),
            **self._memory(serve),
            **shape,
        }
        if not own:
            self._note("vllm", "an entry also needs the versions of vLLM that serve the model; add them")
        self._account_for_the_rest(line)
        self._check()
        return self.result

    def _check(self) -> None:
        """Raise an error if a value is out of the bounds of matrix.yaml."""
        try:
            ServedModel.model_validate({"vllm": ">=0", **self.result.entry})
        except ValidationError as error:
            raise RecipeFormatError(
                f"{self.recipe.path.name} has a value that no model can have.",
                where=self.recipe.path,
                why=first_problem(error),
                fix="Correct the recipe, or leave the value out.",
            ) from None

    def _note(self, what: str, why: str) -> None:
        self.result.account.append(f"{what}: {why}")

    def _refuse_clusters(self) -> None:
        data = self.recipe.data
        nodes = data.get("min_nodes") or 1
        if data.get("cluster_only") or data.get("mode") == "cluster" or nodes != 1:
            raise RecipeNotImportableError(
                f"{self.recipe.path.name} is for several machines.",
                where=self.recipe.path,
                why="Images are made for one machine with one GPU.",
                fix="Look for a recipe of a smaller model, or of one with fewer bits.",
            )

    def _serve(self, line: CommandLine) -> dict[str, Any]:
        """Return the settings and flags that the entry can hold; what it cannot goes into the account."""
        settings = {setting.flag: setting for setting in line.server.settings if setting.flag}
        serve: dict[str, Any] = {}
        flags: dict[str, Any] = {}
        for flag, value in line.flags.items():
            if flag in SILENT or flag.startswith("--speculative") or (flag in ONE_NODE and str(value) == "1"):
                continue
            shown = flag if value is True else f"{flag} {value}"
            if flag == "--served-model-name" and value is not True:
                serve["served_model_name"] = str(value)
            elif flag == "--disable-radix-cache":
                serve["enable_prefix_caching"] = False
            elif why := reason_unfit(self.known, flag, value, settings.get(flag)):
                self._note(shown, why)
            elif setting := settings.get(flag):
                serve[setting.key] = _setting_value(setting, value)
                self.kept[flag] = value
                since = setting.since_of.get(str(serve[setting.key])) or setting.since or "0"
                self.least = max(self.least, Version(since))
            else:
                flags[flag[2:].replace("-", "_")] = json_value(value)
                self.kept[flag] = value
        return serve | ({"flags": flags} if flags else {})

    def _drafter(self, line: CommandLine) -> dict[str, Any]:
        """Return the drafter; empty if there is none, or none that an entry can hold."""
        config = dict(_speculative(line))
        if not config:
            return {}
        method = re.sub(r"^\w+_mtp$", "mtp", str(config.pop("method", "")))
        revision = config.pop("revision", None)
        if revision:
            self._note(f"drafter's revision {revision}", "`invoke lock --models` pins revisions")
        repo = str(config.pop("model", "") or (line.model if method == "mtp" else ""))
        tokens = config.pop("num_speculative_tokens", None)
        if method not in METHODS or not _REPO.fullmatch(repo) or not isinstance(tokens, int):
            self._note(f"drafting by {method or 'a model of unnamed method'}", "an entry cannot describe it")
            return {}
        drafter: dict[str, Any] = {"repo": repo, "method": method, "tokens": tokens}
        if backend := config.pop("attention_backend", None):
            drafter["attention_backend"] = str(backend).lower()
        # Images set it themselves.
        if config.get("kv_cache_dtype") == "auto":
            del config["kv_cache_dtype"]
        scalars = {key: value for key, value in config.items() if isinstance(value, str | int | float)}
        for key in sorted(set(config) - set(scalars)):
            self._note(f"--speculative-config {key}", "an entry holds texts and numbers only")
        if line.server.name == VLLM:
            self.kept["--speculative-config"] = {"method": method, **scalars}
        return drafter | ({"config": scalars} if scalars else {})

    def _environment(self, line: CommandLine) -> dict[str, Any]:
        """Return the variables that the server reads, as a part of the settings."""
        settings = {setting.name for setting in line.server.settings}
        prefix = f"{line.server.name.upper()}_"
        kept: dict[str, str] = {}
        for name, value in {**(self.recipe.data.get("env") or {}), **line.variables}.items():
            text = "" if value is None else str(value)
            if _SECRET.search(name):
                self._note(name, "keys are never imported")
            elif not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or name in settings or "$" in text:
                self._note(f"{name}={text}", "an entry cannot set it")
            elif name.startswith(prefix) and self.known is not None and name not in self.known.variables:
                self._note(f"{name}={text}", f"{line.server.title} {self.records[-1][0]} does not read it")
            else:
                kept[name] = text
        return {"env": kept} if kept else {}

    def _range(self, line: CommandLine) -> str:
        """Return the versions that have all flags of the entry: from the oldest on, without a gap."""
        first = self.records[-1][0] if self.records else Version("0")
        for version, record in reversed(self.records):
            if version < self.least or any(True for _ in record.refused(list(_words(self.kept)), {})):
                break
            first = version
        self._note(
            f"{line.server.name} >={first}",
            "they have all its flags; whether they know the model has to be tried",
        )
        return f">={first}"

    def _weights(self, repo: str) -> str:
        said = str((self.recipe.data.get("metadata") or {}).get("quantization") or "")
        for text in (said, repo):
            plain = re.sub(r"[^a-z0-9]", "", text.lower())
            for part, weights in WEIGHTS.items():
                if part in plain:
                    return weights
        self._note("weights", "neither the recipe nor the repository's name tells them; bf16 is a guess")
        return "bf16"

    def _memory(self, serve: Mapping[str, Any]) -> dict[str, Any]:
        metadata = self.recipe.data.get("metadata") or {}
        weights, cache = metadata.get("model_vram"), metadata.get("kv_vram_per_token")
        if not isinstance(weights, int | float) or not isinstance(cache, int | float):
            self._note(
                "memory", "the recipe does not say how much the model needs, so that images cannot check it"
            )
            return {}
        wide = 2 if str(serve.get("kv_cache_dtype", "")).startswith("fp8") else 1
        context = serve.get("max_model_len")
        if not context or weights <= 0 or not math.isfinite(weights) or not math.isfinite(cache):
            self._note(
                "memory", "the recipe does not say how long the context is, or its sizes make no sense"
            )
            return {}
        self._note(
            "memory", "sizes and context are the recipe's; compare them with the model's configuration"
        )
        return {
            "memory": {
                "weights_gb": float(weights),
                "kv_bytes_per_token": max(1, round(cache * 1e9 * wide)),
                "context": context,
            }
        }

    def _account_for_the_rest(self, line: CommandLine) -> None:
        data = self.recipe.data
        container = str(data.get("container") or "")
        if container:
            pinned = "@sha256:" in container
            self._note(
                f"container {container}",
                f"images are the factory's own{'' if pinned else '; this one is not pinned'}",
            )
        for key, why in ELSEWHERE.items():
            for value in _items(data.get(key)):
                self._note(f"{key} {value}", why)
        for key in self.recipe.unknown_keys:
            self._note(key, "no recipe has this key")
        if self.recipe.data.get("model") not in (None, line.model):
            self._note(f"model {data['model']}", f"the command serves {line.model}")
        if self.result.name in self.project.matrix.models:
            self._note(self.result.name, "matrix.yaml has a model of that name; choose another with --name")


def _setting_value(setting: Setting, value: object) -> object:
    if setting.kind == "switch":
        return bool(value)
    if setting.kind in {"whole", "fraction", "counts"}:
        return json_value(value)
    return str(value).lower() if setting.kind == "choice" else str(value)


def _speculative(line: CommandLine) -> Mapping[str, Any]:
    """Return the drafter in vLLM's words."""
    if line.server.name == VLLM:
        config = json_value(line.flags.get("--speculative-config", "{}"))
        return config if isinstance(config, dict) else {"method": "given"}
    words = {
        "method": "--speculative-algorithm",
        "model": "--speculative-draft-model-path",
        "revision": "--speculative-draft-model-revision",
        "attention_backend": "--speculative-draft-attention-backend",
        "num_speculative_tokens": "--speculative-num-draft-tokens",
    }
    found = {name: json_value(line.flags[flag]) for name, flag in words.items() if flag in line.flags}
    if "method" in found:
        found["method"] = str(found["method"]).lower()
    tokens = found.get("num_speculative_tokens")
    # SGLang counts the token that verifies the draft.
    return found | ({"num_speculative_tokens": tokens - 1} if isinstance(tokens, int) else {})


def _words(flags: Mapping[str, Any]) -> Iterator[str]:
    """Yield flags as words of a command."""
    for flag, value in flags.items():
        if isinstance(value, bool):
            yield flag if value else f"--no-{flag[2:]}"
        else:
            yield flag
            yield json.dumps(value) if isinstance(value, dict) else str(value)


def _items(value: object) -> list[object]:
    if not value:
        return []
    return list(value) if isinstance(value, list) else [value]
