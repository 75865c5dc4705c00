"""How an image starts: from a model's settings to the arguments of `vllm serve`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from imagefactory.cells import Cell, usable_drafters
from imagefactory.locks import ModelLock
from imagefactory.matrix import Drafter, Matrix, Serve
from imagefactory.mods.choose import Chosen
from imagefactory.oci.format import VENV

GENERATED_MODELS = "/opt/models"
"""Where models that the factory makes itself lie in an image."""


@dataclass(frozen=True)
class Command:
    """What a container runs, and with which arguments unless the user gives others."""

    entrypoint: tuple[str, ...]
    arguments: tuple[str, ...]


def environment() -> dict[str, str]:
    """List the variables that every image sets."""
    return {
        "LANG": "C.UTF-8",
        "PATH": f"/{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "VIRTUAL_ENV": f"/{VENV}",
    }


def model_settings(matrix: Matrix, cell: Cell, revisions: ModelLock, chosen: Chosen) -> dict[str, object]:
    """Describe a cell's model: where it is, at which revision, with which drafter and flags."""
    model = matrix.models[cell.model]
    drafters = usable_drafters(matrix, cell)
    settings: dict[str, object] = {
        "model": model.repo or f"{GENERATED_MODELS}/{model.generated}",
        "drafters": [
            drafter.model_dump(mode="json", exclude_none=True, exclude={"vllm"})
            | _revision(revisions, drafter.repo)
            for drafter in drafters
        ],
        "serve": model.serve.model_dump(mode="json", exclude_defaults=True, exclude={"env"})
        | {flag: value for mod, _ in chosen.mods for flag, value in mod.manifest.settings.flags.items()},
    }
    if model.repo:
        settings |= _revision(revisions, model.repo)
    if model.generated:
        settings["generated"] = model.generated
    if drafters:
        settings["speculative_config"] = _speculative_config(drafters[0], settings, matrix, cell)
    return settings


def entrypoint(settings: dict[str, object]) -> Command:
    """Turn a model's settings into the recommended `vllm serve` command."""
    serve = Serve.model_validate(settings["serve"])
    arguments = [str(settings["model"])]
    if "revision" in settings:
        arguments += ["--revision", str(settings["revision"])]
    for name, value in serve.model_dump(exclude_defaults=True, exclude={"env"}).items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        else:
            arguments += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    if "speculative_config" in settings:
        arguments += ["--speculative-config", json.dumps(settings["speculative_config"])]
    return Command((f"/{VENV}/bin/vllm", "serve"), tuple(arguments))


def _revision(revisions: ModelLock, repo: str) -> dict[str, object]:
    commit = revisions.commit_of(repo)
    return {"revision": commit} if commit else {}


def _speculative_config(
    drafter: Drafter, settings: dict[str, object], matrix: Matrix, cell: Cell
) -> dict[str, object]:
    config: dict[str, object] = {
        "method": drafter.method,
        "model": drafter.repo,
        "num_speculative_tokens": drafter.tokens,
    }
    # Before 0.21.0 the speculative config has no such key.
    if drafter.attention_backend and matrix.vllm[cell.vllm].within(">=0.21.0.dev0"):
        config["attention_backend"] = drafter.attention_backend
    first = settings["drafters"]
    if isinstance(first, list) and "revision" in first[0]:
        config["revision"] = first[0]["revision"]
    return config
