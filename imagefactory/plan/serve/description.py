"""Describes how an image starts: its model, its environment, and settings.json for the serve program."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from imagefactory.mods.choose import Chosen, choose_mods
from imagefactory.oci.format import VENV
from imagefactory.plan.serve.image_paths import CUDA_HOME, MODS_AT_START, OFFLINE, cache_environment
from imagefactory.project.cells import (
    Cell,
    KernelOrigin,
    called_modules,
    intended_kernels,
    loader_of,
    usable_drafters,
)
from imagefactory.project.locks.files import ModelLock
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.served_model import ServedModel
from imagefactory.project.server_versions import TITLES, VLLM
from imagefactory.project.servers.known import SERVERS, server_of
from imagefactory.project.servers.server import Setting
from imagefactory.store.digests import canonical_json

FORMAT = 1
GB = 1_000_000_000  # as matrix.yaml counts; the serve program counts in bytes
DRIVER = "580"  # the first driver branch for CUDA 13, which all wheels are made for
Description = dict[str, Any]


def describe_image(
    matrix: Matrix, cell: Cell, model: Mapping[str, Any], *, kernels: KernelOrigin | None = None
) -> Description:
    """Return the content of settings.json for a cell; `model` is the content of model.json."""
    serve = dict(model.get("serve", {}))
    # The first shape is in model.json already (`serve_document`).
    for shape in matrix.models[cell.model].shapes(cell.server, cell.arch)[1:]:
        serve |= shape.by_name(given=True)
    serve |= matrix.versions[cell.version].flags.get(matrix.models[cell.model].weights, {})
    facts, server = _image_facts(matrix, cell, kernels), server_of(cell)
    serve.setdefault("load_format", loader_of(matrix, cell))
    serve = server.in_words_of(matrix.versions[cell.version], serve, matrix.models[cell.model].weights)
    covered = {setting.key for setting in server.settings}
    if matrix.models[cell.model].sparks > 1:
        serve["nodes"] = matrix.models[cell.model].sparks
    if more := {name: value for name, value in sorted(serve.items()) if name not in covered}:
        facts["flags"] = more
    settings = [
        _entry(setting, _default(setting, model, serve), f"{server.name}_default") for setting in server.settings
    ]
    refused = {"refused": dict(server.refused)} if server.refused else {}
    return {"format": FORMAT, "image": facts, "settings": settings, **refused}


def settings_bytes(description: Description) -> bytes:
    return json.dumps(json.loads(canonical_json(description)), indent=1, sort_keys=True).encode() + b"\n"


def write_description(description: Description, model: Mapping[str, Any], folder: Path) -> None:
    """Write the files that describe an image to its serve program."""
    (folder / "settings.json").write_bytes(settings_bytes(description))
    (folder / "model.json").write_text(json.dumps(model), "utf-8")


def image_environment(description: Description) -> dict[str, str]:
    """Return the image's defaults as variables, for `docker inspect`; secrets have none."""
    return {
        entry["name"]: entry["default"]
        for entry in description["settings"]
        if entry["default"] and entry["kind"] != "secret"
    }


def _default(setting: Setting, model: Mapping[str, Any], serve: Mapping[str, Any]) -> str:
    drafters = model.get("drafters") or [{}]
    of_model = {
        "MODEL": model["model"],
        "DFLASH_DRAFTER": drafters[0].get("repo"),
        "DFLASH_NUM_SPEC_TOKENS": drafters[0].get("tokens"),
        "DRAFT_ATTENTION_BACKEND": drafters[0].get("attention_backend"),
    }
    value = of_model.get(setting.name, serve.get(setting.key))
    return setting.default if value is None else _as_text(value)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def _entry(setting: Setting, default: str, assumed: str) -> dict[str, Any]:
    # Not asdict(), which copies deeply, for each setting of each image: a sixth of the time of a plan.
    values = ((each.name, getattr(setting, each.name)) for each in fields(setting))
    entry = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in values
        if key not in {"passed", "spelled", "server_default"} and value not in (None, "", (), {})
    }
    if setting.server_default:
        entry[assumed] = setting.server_default
    return entry | ({"flag": setting.flag} if setting.passed else {}) | {"default": default}


def _image_facts(matrix: Matrix, cell: Cell, kernels: KernelOrigin | None) -> dict[str, object]:
    version, arch = matrix.versions[cell.version], matrix.archs[cell.arch]
    origin = kernels or intended_kernels(matrix, cell)
    facts: dict[str, object] = {
        "target": str(cell),
        cell.server: str(version.version),
        "arch": cell.arch,
        "capability": arch.capability or "",
        "driver": DRIVER if arch.capability else "",
        # The serve program only has to know whether the kernels are for one chip, as those of a graft are.
        "kernels": "compiled" if origin == "graft" else origin,
        "weights": matrix.models[cell.model].weights,
        "mods_module": MODS_AT_START,
    }
    if arch.flashinfer_cuda_arch_list and (modules := called_modules(matrix, cell)):
        facts["flashinfer"] = {"archs": arch.flashinfer_cuda_arch_list, "modules": modules}
    if version.extras:
        facts["extras"] = version.extras
    memory = matrix.models[cell.model].memory
    if memory is not None:
        facts["memory"] = {
            "weights": round(memory.weights_gb * GB),
            "download": round((memory.download_gb or memory.weights_gb) * GB),
            "drafter": round(memory.drafter_gb * GB),
            "kv_per_token": memory.kv_bytes_per_token,
            "kv_per_sequence": memory.kv_bytes_per_sequence,
            "context": memory.context,
            "hybrid": memory.hybrid,
            **({"window": memory.window} if memory.window else {}),
            **({"latent": True} if memory.latent else {}),
            **({"table": round(memory.table_gb * GB)} if memory.table_gb else {}),
        }
    return facts


GENERATED_MODELS = "/opt/models"  # the folder in an image for models that the factory makes itself


@dataclass(frozen=True)
class Served:
    """The content of the last layer, and the environment of the image."""

    model: dict[str, Any]  # model.json: the model's location and revision, its drafters and flags
    description: Description  # settings.json: every setting with this image's default
    extra: dict[str, str]  # environment variables set by the server's version, the model or a mod
    compiles: bool = False  # whether the image has a CUDA compiler

    @property
    def revisions(self) -> list[str]:
        """The pinned repositories that the image serves, as REPOSITORY@COMMIT, the model's own first."""
        named = [(self.model["model"], self.model.get("revision"))]
        named += [(drafter["repo"], drafter.get("revision")) for drafter in self.model["drafters"]]
        return [*dict.fromkeys(f"{repo}@{commit}" for repo, commit in named if commit)]

    def environment(self) -> dict[str, str]:
        fixed = {
            "LANG": "C.UTF-8",
            "PATH": f"/{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "VIRTUAL_ENV": f"/{VENV}",
        }
        if self.compiles:
            fixed |= {"CUDA_HOME": f"/{CUDA_HOME}", "PATH": f"{fixed['PATH']}:/{CUDA_HOME}/bin"}
        if called := self.description["image"].get("flashinfer"):
            # FlashInfer files its modules by this; without a GPU, as beside a start, it could not ask.
            fixed["FLASHINFER_CUDA_ARCH_LIST"] = called["archs"]
        server = SERVERS[self.model.get("server", VLLM)]
        fixed |= OFFLINE | cache_environment(server)
        merged = fixed | image_environment(self.description) | self.extra
        return dict(sorted(merged.items()))


def describe(
    matrix: Matrix,
    cell: Cell,
    revisions: ModelLock,
    chosen: Chosen,
    kernels: KernelOrigin | None,
    *,
    compiles: bool = False,
) -> Served:
    model = model_settings(matrix, cell, revisions, chosen)
    description = describe_image(matrix, cell, model, kernels=kernels)
    mod_variables = {name: value for mod, _ in chosen.mods for name, value in mod.manifest.settings.env.items()}
    shapes = matrix.models[cell.model].shapes(cell.server, cell.arch)
    variables = {name: value for shape in shapes for name, value in shape.env.items()}
    own = server_of(cell).start_variables(matrix.versions[cell.version], matrix.archs[cell.arch])
    # Of a variable that a mod and the model set, the model's value counts.
    return Served(model, description, own | mod_variables | variables, compiles)


def describe_cell(project: Project, cell: Cell, kernels: KernelOrigin | None = None) -> Served:
    """Describe how a cell's image starts with the mods that it has; without a lock, with the kernels it is to have."""
    chosen = choose_mods(project.matrix, cell, project.mods)
    return describe(project.matrix, cell, project.model_lock, chosen, kernels)


def model_settings(matrix: Matrix, cell: Cell, revisions: ModelLock, chosen: Chosen) -> dict[str, Any]:
    """Return model.json for a cell: the model's location and revision, its drafters and flags."""
    model = matrix.models[cell.model]
    drafters = usable_drafters(matrix, cell)
    settings: dict[str, Any] = {
        "model": model.repo or f"{GENERATED_MODELS}/{model.generated}",
        "drafters": [
            drafter.model_dump(mode="json", exclude_none=True, exclude=set(TITLES)) | _revision(revisions, drafter.repo)
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
