"""Describes how an image starts: its model, settings and environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imagefactory.mods.choose import Chosen
from imagefactory.oci.format import VENV
from imagefactory.plan.serve.description import Description, describe_image, image_environment
from imagefactory.plan.serve.image_paths import CUDA_HOME, cache_environment
from imagefactory.project.cells import Cell, KernelOrigin, usable_drafters
from imagefactory.project.locks.files import ModelLock
from imagefactory.project.matrix import Matrix
from imagefactory.project.served_model import ServedModel
from imagefactory.project.server_names import TITLES, VLLM
from imagefactory.project.servers.known import SERVERS, server_of

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
        server = SERVERS[self.model.get("server", VLLM)]
        merged = fixed | cache_environment(server) | image_environment(self.description) | self.extra
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
    shapes = matrix.models[cell.model].shapes(cell.server, cell.arch)
    variables = {name: value for shape in shapes for name, value in shape.env.items()}
    return Served(model, description, mod_variables | variables, compiles)


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
        "serve": serve_document(model, cell)
        | {flag: value for mod, _ in chosen.mods for flag, value in mod.manifest.settings.flags.items()},
    }
    if model.repo:
        settings |= _revision(revisions, model.repo)
    if model.generated:
        settings["generated"] = model.generated
    if cell.server != VLLM:
        settings["server"] = cell.server
    if drafters:
        version = matrix.versions[cell.version]
        for name, config in server_of(cell).model_document(drafters[0], version).items():
            settings[name] = config | _revision(revisions, drafters[0].repo)
    return settings


def serve_document(model: ServedModel, cell: Cell) -> dict[str, Any]:
    """Return the settings of a model with a server; those of the arch are in settings.json only."""
    shapes = model.shapes(cell.server, cell.arch)
    return shapes[0].by_name() if shapes else {}


def _revision(revisions: ModelLock, repo: str) -> dict[str, Any]:
    commit = revisions.commit_of(repo)
    return {"revision": commit} if commit else {}
