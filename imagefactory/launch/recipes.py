"""Writes the start of an image for other launchers: recipes for the DGX Spark, Podman's quadlet, llama-swap.

`eugr` is version 1 of eugr/spark-vllm-docker's recipes, `sparkrun` is version 2 of spark-arena/sparkrun's. Both hold
the command as a template whose `{names}` stand for defaults that a user may override. The others come from the
`docker run` command, so that they cannot say anything else.
"""

import json
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, Literal

from imagefactory.errors import TrustError, unknown_name
from imagefactory.launch.docker_run import (
    STOP_SECONDS,
    TOKEN,
    Launch,
    block_text,
    docker_run,
    pinned,
    shell_line,
)
from imagefactory.launch.rendering import render_text, render_yaml, yaml_text
from imagefactory.plan.serve.description import Description, image_environment
from imagefactory.plan.serve.image_paths import ENTRYPOINT, HEALTHCHECK, SECOND
from imagefactory.project.cells import Cell
from imagefactory.project.matrix import Matrix
from imagefactory.project.server_versions import TITLES
from imagefactory.project.servers.known import server_of
from imagefactory.project.servers.server import Server

Format = Literal["eugr", "sparkrun"]
QUADLET: Final = "quadlet"
LLAMA_SWAP: Final = "llama-swap"
CLUSTERS: Final = ("kubernetes", "slurm", "gpustack")
QUANTIZATIONS = {"bf16": "none", "int4-autoround": "auto-round"}  # sparkrun's own names for weights
TEMPLATED = ("MAX_MODEL_LEN", "MAX_NUM_SEQS", "MAX_NUM_BATCHED_TOKENS", "GPU_MEMORY_UTILIZATION")
"""The settings that a user of a recipe may override."""


def settings_of_a_recipe(matrix: Matrix, cell: Cell, given: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return what a recipe sets: launchers add the flags of several nodes themselves."""
    return ({"NODES": "1"} if matrix.models[cell.model].sparks > 1 else {}) | dict(given)


def refuse_unknown(style: str, cell: Cell) -> None:
    server = server_of(cell)
    launchers = [*server.recipes, QUADLET, LLAMA_SWAP, *CLUSTERS]
    if style and style not in launchers:
        raise unknown_name(f"launcher for {server.title}", style, launchers, "the --recipe option")


def recipe_text(document: Mapping[str, Any]) -> str:
    """Write a recipe; its command is in double quotes: block scalars end where some parsers see the end of a line."""
    return yaml_text(document, '"', sys.maxsize)


def recipe_document(
    style: str, launch: Launch, model: Mapping[str, Any], command: Sequence[str], env: Mapping[str, str]
) -> dict[str, Any]:
    if launch.key_file is not None:
        raise TrustError(
            "key-not-passed",
            "A recipe cannot contain the API key.",
            where="the --recipe option",
            why="Recipes are for sharing, and a server started from one would be open although you gave a key.",
            fix="Unset VLLM_API_KEY and VLLM_API_KEY_FILE for this command, and tell the launcher the key.",
        )
    cell, facts = launch.cell, launch.description["image"]
    server = server_of(cell)
    nodes = int(image_environment(launch.description).get("NODES", "1"))
    defaults: dict[str, object] = {"host": "0.0.0.0", "port": 8000, "tensor_parallel": nodes}  # noqa: S104
    words = _template(server, command, defaults)
    return render_yaml(
        "recipe.yaml",
        style=style,
        cell=cell,
        server=server,
        version=facts[server.name],
        model={"revision": None, **model},
        nodes=nodes,
        image=pinned(launch.image),
        defaults=defaults,
        env=dict(sorted(env.items())),
        command=_folded(words, double_braces=style == "eugr"),
        metadata=_metadata(launch.description),
    )


def _template(server: Server, command: Sequence[str], defaults: dict[str, object]) -> list[str]:
    """Replace values that a user may override with names, and add the values to `defaults`."""
    names = {setting.flag: setting.key for setting in server.settings if setting.name in TEMPLATED}
    # No argument of a program can contain \0, so it marks names.
    words: list[str] = []
    rest = iter(command)
    for word in rest:
        words.append(word)
        if name := names.get(word):
            defaults[name] = json.loads(next(rest))
            words.append(f"\0{name}\0")
        elif word in {"--host", "--port"}:
            words.pop()
            value = next(rest)
            defaults[word[2:]] = int(value) if word == "--port" else value
    return [*words, "--host", "\0host\0", "--port", "\0port\0", server.tensor_parallel, "\0tensor_parallel\0"]


def _folded(words: list[str], *, double_braces: bool) -> str:
    """Format the command over several lines; names become {names} once everything else is quoted."""
    lines = [" ".join(words[:3])]
    for word in words[3:]:
        quoted = shlex.quote(word) if "\0" not in word else word
        if double_braces:
            quoted = quoted.replace("{", "{{").replace("}", "}}")
        if "\0" in quoted:
            quoted = "{" + quoted.strip("\0") + "}"
        if word.startswith("-"):
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    return " \\\n  ".join(lines) + "\n"


def _metadata(description: Description) -> dict[str, object]:
    facts, defaults = description["image"], image_environment(description)
    memory = facts.get("memory") or {}
    metadata: dict[str, object] = {
        "category": "chat",
        "quantization": QUANTIZATIONS.get(facts["weights"], facts["weights"]),
    }
    compressed = defaults.get("KV_CACHE_DTYPE", "").startswith("fp8")
    if compressed:
        metadata["kv_dtype"] = "fp8"
    if memory:
        # sparkrun counts in GB, of which nine digits are bytes; matrix.yaml's are of 16-bit values, and FP8 takes half.
        metadata["model_vram"] = round((memory["weights"] + memory["drafter"]) / 1e9, 1)
        metadata["kv_vram_per_token"] = round(memory["kv_per_token"] / (2 if compressed else 1) / 1e9, 9)
    return metadata


FIRST_START: Final = 3600
"""Seconds for a first start: data/starts.yaml has two minutes, a Spark takes ten; the rest is for a download."""
_KEYS: Final = {"--name": "ContainerName", "--network": "Network", "--volume": "Volume"}


def quadlet(launch: Launch) -> str:
    """Return a unit from which systemd makes a service of Podman's."""
    options = docker_run(launch, detach=False)[3:-1]  # between `docker run --rm` and the image, all with values
    pairs = zip(options[::2], options[1::2], strict=True)
    # An image's configuration has nanoseconds, a unit has seconds.
    seconds = {name: int(str(HEALTHCHECK[name])) // SECOND for name in ("Interval", "Timeout", "StartPeriod")}
    return render_text(
        "quadlet.container",
        title=f"{TITLES[launch.cell.server]}: {launch.cell.model}",
        image=pinned(launch.image),
        options=[pair for pair in pairs if pair != ("--env", TOKEN)],  # a service has no environment to hand on
        keys=_KEYS,
        health={
            "command": " ".join((*ENTRYPOINT, "health")),
            "interval": seconds["Interval"],
            "timeout": seconds["Timeout"],
            "start_period": seconds["StartPeriod"],
            "retries": HEALTHCHECK["Retries"],
        },
        stop_seconds=STOP_SECONDS,
    )


def llama_swap(launches: Sequence[Launch]) -> str:
    """Return a configuration that starts the model that a request names, and stops the one before."""
    models: dict[str, Any] = {}
    every = Counter(launch.cell.model for launch in launches)
    names = Counter(launch.names[0] for launch in launches)
    for launch in launches:
        cell, served = launch.cell, launch.names[0]
        given = {key: value for key, value in launch.given.items() if key not in {"HOST", "PORT"}}
        command = docker_run(replace(launch, given=given), detach=False)
        # llama-swap picks a port, and writes it in the place of ${PORT}.
        command[-1:-1] = ["--env", "HOST=127.0.0.1", "--env", "PORT=${PORT}"]
        name = cell.model if every[cell.model] == 1 else f"{cell.model}@{cell.version}"
        alias = names[served] == 1 and served != name
        models[name] = {
            "command": shell_line(command),
            "container": launch.container,
            "served": served,
            "alias": alias,
        }
    document = render_yaml("llama-swap.yaml", models=models, first_start=FIRST_START, stop_seconds=STOP_SECONDS)
    return block_text(document)
