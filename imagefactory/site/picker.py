"""Gathers what the picker needs: every planned image with its settings, the rules of the serve program, and machines.

The browser applies the same rules.json as the containers do, to the same settings.json and model.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, get_args

from imagefactory.build.start.docker_run import HUB_CACHE, Launch, compose, docker_run
from imagefactory.build.start.launcher_recipes import TEMPLATED, Format, recipe
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.matrix.matrix import Matrix
from imagefactory.matrix.targets import default_target
from imagefactory.mods.choose import choose_mods
from imagefactory.plan.serve.description import Description
from imagefactory.plan.serve.image_paths import MODEL_CACHE, program_folder
from imagefactory.plan.serve.served import Served, describe
from imagefactory.publish.tags import moving_tags
from imagefactory.servers.known import SERVERS, server_of
from imagefactory.servers.server import Server
from imagefactory.store.digests import Digest

NOT_OFFERED: Final = (
    *("MODEL", "MODEL_PATH", "CHAT_TEMPLATE", "MODS", "MODS_PATH"),
    *("VLLM_API_KEY", "VLLM_API_KEY_FILE", "EXTRA_ARGS"),
)
"""Settings that depend on files of the user, hold a secret, or are checked against the server's own sources."""
MEMORY: Final[Mapping[str, Mapping[str, Any]]] = {
    "gb10": {"total": 128_525_242_368, "free": 122_406_567_936, "unified": True},
    "rtx5090": {"total": 34_190_917_632, "free": 33_200_000_000, "unified": False},
    "b200": {"total": 192_265_846_784, "free": 191_000_000_000, "unified": False},
    "h100": {"total": 85_520_809_984, "free": 84_900_000_000, "unified": False},
}
"""The memory of each arch in bytes, and how much of it an idle machine has free; taken from documents, not measured."""


class PickedImage(Protocol):
    """A cell's image; its digest is None while a layer has never been built."""

    @property
    def digest(self) -> Digest | None:
        """The digest, if it is known."""


class PickedStock(Protocol):
    """The images of a checkout."""

    @property
    def project(self) -> Project:
        """The checkout."""

    @property
    def planned(self) -> Mapping[Cell, PickedImage]:
        """Its cells that are locked."""


def picker_data(stock: PickedStock) -> dict[str, Any]:
    """Return all that the picker knows."""
    project = stock.project
    servers: dict[str, dict[str, Any]] = {}
    images = []
    for cell, planned in stock.planned.items():
        served = _served(project, cell)
        settings = served.description["settings"]
        server = servers.setdefault(cell.server, _server(server_of(cell)) | {"settings": settings})
        images.append(_image(project.matrix, cell, served, server["settings"], planned.digest))
    return {
        "rules": _rules(project),
        "servers": servers,
        "machines": list(_machines(project.matrix, list(stock.planned))),
        "images": images,
        "not_offered": list(NOT_OFFERED),
        "model": default_target(project.matrix),
        "version": project.matrix.defaults.vllm,
    }


def settings_document(data: Mapping[str, Any], image: Mapping[str, Any]) -> Description:
    """Return the settings.json of an image, put together as the picker does."""
    server = data["servers"][image["server"]]
    settings = [
        {**entry, "default": image["defaults"].get(entry["name"], entry["default"])}
        for entry in server["settings"]
    ]
    refused = {"refused": server["refused"]} if server["refused"] else {}
    return {"format": 1, "image": image["facts"], "settings": settings, **refused}


def _rules(project: Project) -> dict[str, Any]:
    folder = program_folder(project.root) / "program"
    paths = {"common": folder / "rules.json"}
    paths |= {name: folder / "servers" / name / "rules.json" for name in SERVERS}
    return {name: json.loads(path.read_text("utf-8")) for name, path in paths.items()}


def _server(server: Server) -> dict[str, Any]:
    return {
        "title": server.title,
        "refused": dict(server.refused),
        "recipes": list(server.recipes),
        "tensor_parallel": server.tensor_parallel,
        "templated": {setting.flag: setting.key for setting in server.settings if setting.name in TEMPLATED},
    }


def _served(project: Project, cell: Cell) -> Served:
    chosen = choose_mods(project.matrix, cell, project.mods)
    return describe(project.matrix, cell, project.model_lock, chosen, project.wheel_lock(cell).kernels)


def _image(
    matrix: Matrix, cell: Cell, served: Served, settings: list[dict[str, Any]], digest: Digest | None
) -> dict[str, Any]:
    """Describe an image; its defaults are those that differ from those of its server's first image."""
    name = f"{matrix.effective_registry}{f'@{digest}' if digest else f':{moving_tags(matrix, cell)[0]}'}"
    launch = Launch(cell, name, served.description)
    first = {entry["name"]: entry["default"] for entry in settings}
    own = {entry["name"]: entry["default"] for entry in served.description["settings"]}
    words = docker_run(launch)[2:-1]
    return {
        "target": str(cell),
        "model": cell.model,
        "version": cell.version,
        "machine": _machine_name(matrix, cell),
        "server": cell.server,
        "reference": name,
        "facts": served.description["image"],
        "document": served.model,
        "defaults": {name: default for name, default in own.items() if default != first[name]},
        "options": [
            f"{HUB_CACHE}:{MODEL_CACHE}" if word.endswith(f":{MODEL_CACHE}") else word for word in words
        ],
        "compose": _around(
            compose(launch), r"(?P<before>.*^    environment:\n)(?:      [^\n]*\n)+(?P<after>.*)"
        ),
        "recipes": dict(_recipes(launch, served)) if digest else {},
    }


def _recipes(launch: Launch, served: Served) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the parts of recipes that settings do not change."""
    pattern = r"(?P<before>.*?)^defaults:\n.*?(?P<env>^env:.*?)^command:.*?(?P<after>^metadata:.*)?\Z"
    for style in get_args(Format):
        if style in server_of(launch.cell).recipes:
            text = recipe(style, launch, served.model, [launch.cell.server, "serve", "MODEL"], served.extra)
            yield style, _around(text, pattern)


def _around(text: str, pattern: str) -> dict[str, str]:
    found = re.fullmatch(pattern, text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError("a file for starting an image has another form than the picker knows")
    return {name: part or "" for name, part in found.groupdict().items()}


def _machine_name(matrix: Matrix, cell: Cell) -> str:
    return cell.arch if len(matrix.archs[cell.arch].platforms) == 1 else f"{cell.arch}-{cell.machine}"


def _machines(matrix: Matrix, cells: list[Cell]) -> Iterator[dict[str, Any]]:
    """Yield the machines that images are for, in the order of the matrix."""
    names = {_machine_name(matrix, cell): cell for cell in cells}
    order = list(matrix.archs)
    for name, cell in sorted(names.items(), key=lambda item: (order.index(item[1].arch), item[0])):
        arch = matrix.archs[cell.arch]
        title = arch.gpu or f"any CPU ({cell.machine})"
        yield {"name": name, "title": title, "capability": arch.capability or "", **MEMORY.get(cell.arch, {})}
