"""Describes how an image starts: its model, settings and environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imagefactory.locks.files import ModelLock
from imagefactory.matrix.cells import Cell, KernelOrigin, usable_drafters
from imagefactory.matrix.matrix import Matrix
from imagefactory.matrix.served_model import Drafter
from imagefactory.matrix.server_names import TITLES
from imagefactory.mods.choose import Chosen
from imagefactory.oci.format import VENV
from imagefactory.plan.serve.description import Description, describe_image, image_environment
from imagefactory.plan.serve.image_paths import CUDA_HOME, cache_environment

GENERATED_MODELS = "/opt/models"
"""The folder in an image for models that the factory makes itself."""


@dataclass(frozen=True)
class Served:
    """The content of the last layer, and the environment of the image."""

    model: dict[str, Any]
    """model.json: the model's location and revision, its drafters and flags."""
    description: Description
    """settings.json: every setting with this image's default."""
    extra: dict[str, str]
    """Environment variables set by the model or by a mod."""
    compiles: bool = False
    """Whether the image has a CUDA compiler."""

    def environment(self) -> dict[str, str]:
        """Return the variables of the image, sorted."""
        fixed = {
            "LANG": "C.UTF-8",
            "PATH": f"/{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "VIRTUAL_ENV": f"/{VENV}",
        }
        if self.compiles:
            fixed |= {"CUDA_HOME": f"/{CUDA_HOME}", "PATH": f"{fixed['PATH']}:/{CUDA_HOME}/bin"}
        merged = fixed | cache_environment() | image_environment(self.description) | self.extra
        return dict(sorted(merged.items()))


def describe(
    matrix: Matrix,
    cell: Cell,
    revisions: ModelLock,
    chosen: Chosen,
    kernels: KernelOrigin,
    *,
    compiles: bool = False,
) -> Served:
    """Describe how a cell starts, with the settings of the matrix and of its mods."""
    model = model_settings(matrix, cell, revisions, chosen)
    description = describe_image(matrix, cell, model, kernels=kernels)
    mod_variables = {
        name: value for mod, _ in chosen.mods for name, value in mod.manifest.settings.env.items()
    }
    return Served(model, description, mod_variables | matrix.models[cell.model].serve.env, compiles)


def model_settings(matrix: Matrix, cell: Cell, revisions: ModelLock, chosen: Chosen) -> dict[str, Any]:
    """Return model.json for a cell: the model's location and revision, its drafters and flags."""
    model = matrix.models[cell.model]
    drafters = usable_drafters(matrix, cell)
    settings: dict[str, Any] = {
        "model": model.repo or f"{GENERATED_MODELS}/{model.generated}",
        "drafters": [
            drafter.model_dump(mode="json", exclude_none=True, exclude=set(TITLES))
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
        settings["speculative_config"] = _speculative_config(drafters[0], revisions, matrix, cell)
    return settings


def _revision(revisions: ModelLock, repo: str) -> dict[str, Any]:
    commit = revisions.commit_of(repo)
    return {"revision": commit} if commit else {}


def _speculative_config(drafter: Drafter, revisions: ModelLock, matrix: Matrix, cell: Cell) -> dict[str, Any]:
    config: dict[str, Any] = {
        "method": drafter.method,
        "model": drafter.repo,
        "num_speculative_tokens": drafter.tokens,
    }
    # The key exists since vLLM 0.21.0.
    if drafter.attention_backend and matrix.versions[cell.version].within(">=0.21.0.dev0"):
        config["attention_backend"] = drafter.attention_backend
    return config | _revision(revisions, drafter.repo)
