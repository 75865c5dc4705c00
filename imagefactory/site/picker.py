"""Gathers what the picker needs: every planned image with its settings, the rules of the serve program, and machines.

The browser applies the same rules.json as the containers do, to the same settings.json and model.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Self, get_args

from imagefactory.launch.docker_run import HUB_CACHE, Launch, compose_document, compose_text, docker_run
from imagefactory.launch.recipes import TEMPLATED, Format, recipe_document, recipe_text
from imagefactory.plan.serve.description import Served, describe_cell
from imagefactory.plan.serve.image_paths import MODEL_CACHE, program_folder
from imagefactory.project.cells import Cell, default_version
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.servers.known import SERVERS, server_of
from imagefactory.project.servers.server import Server
from imagefactory.project.targets import default_target
from imagefactory.publish.tags import moving_tags
from imagefactory.site.choosing import gpu_of
from imagefactory.site.stock import Document
from imagefactory.store.digests import Digest

NOT_OFFERED: Final = (
    *("MODEL", "MODEL_PATH", "CHAT_TEMPLATE", "MODS", "MODS_PATH"),
    *("VLLM_API_KEY", "VLLM_API_KEY_FILE", "EXTRA_ARGS"),
    *("NODES", "NODE_RANK", "HEAD_ADDRESS", "CABLE", "HEAD_PORT"),
)
"""Settings that depend on files or cables, hold a secret, or are checked against the server's own sources."""
MEMORY: Final[Mapping[str, Mapping[str, Any]]] = {
    "gb10": {"total": 128_525_242_368, "free": 122_406_567_936, "unified": True},
    "rtx5090": {"total": 34_190_917_632, "free": 33_200_000_000, "unified": False},
    "b200": {"total": 192_265_846_784, "free": 191_000_000_000, "unified": False},
    "h100": {"total": 85_520_809_984, "free": 84_900_000_000, "unified": False},
}
"""The memory of each arch in bytes, and how much of it an idle machine has free; taken from documents, not measured."""


class Offer(NamedTuple):
    """An image to offer: its digest, None if it has never been built, whether it is published, and its answers."""

    digest: Digest | None
    state: str
    answers: str = ""

    @classmethod
    def of(cls, image: Document) -> Self:
        """Offer what the page of an image offers."""
        return cls(image["published_digest"] or image["digest"], image["state"], image["answers"])


def picker_data(project: Project, offers: Mapping[Cell, Offer]) -> dict[str, Any]:
    servers: dict[str, dict[str, Any]] = {}
    images = []
    for cell, offer in offers.items():
        served = describe_cell(project, cell, project.wheel_lock(cell).kernels)
        settings = served.description["settings"]
        server = servers.setdefault(cell.server, _server(server_of(cell)) | {"settings": settings})
        images.append(_image(project.matrix, cell, served, server["settings"], offer))
    return {
        "rules": _rules(project),
        "servers": servers,
        "machines": list(machines(project.matrix, offers)),
        "images": images,
        "not_offered": list(NOT_OFFERED),
        "model": default_target(project.matrix),
        "version": project.matrix.defaults.vllm,
    }


def choose_data(picker: Mapping[str, Any], order: Mapping[str, Any], cards: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the home page needs: the images that stand for models, without files that it does not write."""
    images = (image for image in picker["images"] if image["default"])
    left_out = {"compose", "recipes"}
    few = [{name: value for name, value in image.items() if name not in left_out} for image in images]
    return {**picker, "images": few, "order": order, "models": cards}


def _rules(project: Project) -> dict[str, Any]:
    folder = program_folder(project.root) / "program"
    paths = {"common": folder / "rules.json"}
    paths |= {name: folder / "servers" / f"{name}.json" for name in SERVERS}
    return {name: json.loads(path.read_text("utf-8")) for name, path in paths.items()}


def _server(server: Server) -> dict[str, Any]:
    return {
        "title": server.title,
        "refused": dict(server.refused),
        "recipes": list(server.recipes),
        "tensor_parallel": server.tensor_parallel,
        "templated": {setting.flag: setting.key for setting in server.settings if setting.name in TEMPLATED},
    }


def _image(matrix: Matrix, cell: Cell, served: Served, settings: list[dict[str, Any]], offer: Offer) -> dict[str, Any]:
    """Describe an image; its defaults are those that differ from those of its server's first image."""
    digest = offer.digest
    name = f"{matrix.effective_registry}{f'@{digest}' if digest else f':{moving_tags(matrix, cell)[0]}'}"
    launch = Launch(cell, name, served.description)
    first = {entry["name"]: entry["default"] for entry in settings}
    own = {entry["name"]: entry["default"] for entry in served.description["settings"]}
    words = docker_run(launch)[2:-1]
    return {
        "target": str(cell),
        "model": cell.model,
        "version": cell.version,
        "machine": machine_name(matrix, cell),
        "server": cell.server,
        "default": cell.version == default_version(matrix, cell.model),
        "reference": name,
        "state": offer.state,
        "answers": offer.answers,
        "facts": served.description["image"],
        "document": served.model,
        "defaults": {name: default for name, default in own.items() if default != first[name]},
        "options": [f"{HUB_CACHE}:{MODEL_CACHE}" if word.endswith(f":{MODEL_CACHE}") else word for word in words],
        "compose": _compose(launch),
        # Recipes start one machine; docs/two-sparks.md has the commands for two.
        "recipes": dict(_recipes(launch, served)) if digest and matrix.models[cell.model].sparks == 1 else {},
    }


def _compose(launch: Launch) -> str:
    """Return a compose file with a word in the place of the settings."""
    document = compose_document(launch)
    document["services"][launch.cell.server]["environment"] = "SETTINGS"
    return compose_text(document)


def _recipes(launch: Launch, served: Served) -> Iterator[tuple[str, str]]:
    """Yield recipes with words in the places of the parts that settings change."""
    for style in get_args(Format):
        if style in server_of(launch.cell).recipes:
            document = recipe_document(style, launch, served.model, [], served.extra)
            yield style, recipe_text({**document, "defaults": "DEFAULTS", "command": "COMMAND"})


def machine_name(matrix: Matrix, cell: Cell) -> str:
    """Return the machine of a cell, as addresses name it."""
    pair = "-pair" if matrix.models[cell.model].sparks > 1 else ""
    return cell.arch + pair if len(matrix.archs[cell.arch].platforms) == 1 else f"{cell.arch}-{cell.machine}"


def machines(matrix: Matrix, cells: Iterable[Cell]) -> Iterator[dict[str, Any]]:
    """Yield the machines that cells are for, in the order of the matrix."""
    names = {machine_name(matrix, cell): cell for cell in cells}
    order = list(matrix.archs)
    for name, cell in sorted(names.items(), key=lambda item: (order.index(item[1].arch), item[0])):
        arch = matrix.archs[cell.arch]
        title = arch.gpu or f"any CPU ({cell.machine})"
        if matrix.models[cell.model].sparks > 1:
            title = f"two of {title}, joined by a cable"
        gpu = gpu_of(matrix, cell.model, cell.arch)
        more = MEMORY.get(cell.arch, {})
        yield {"name": name, "title": title, "gpu": gpu, "capability": arch.capability or "", **more}
