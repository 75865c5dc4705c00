"""Prepares `invoke run`: the image to start, its settings, and the command, compose file or recipe for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from imagefactory.build.engines.docker.daemon import image_id, load
from imagefactory.build.found import built_layouts
from imagefactory.build.start.docker_run import (
    HUB_CACHE,
    Launch,
    compose,
    docker_run,
    pinned,
    shell_line,
)
from imagefactory.build.start.key_file import find_key_file
from imagefactory.build.start.launcher_recipes import Format, recipe
from imagefactory.build.start.preview import Preview
from imagefactory.build.start.runtime_mods import runtime_mods
from imagefactory.errors import did_you_mean
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.errors.serving import KeyNotPassedError, SettingRefusedError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.mods.choose import choose_mods
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.serve.served import Served, describe
from imagefactory.servers.setting import KEY_SETTINGS


@dataclass(frozen=True)
class Start:
    """A start that the serve program has accepted."""

    launch: Launch
    served: Served
    command: tuple[str, ...]
    """What the container will run."""

    def line(self, *, detach: bool = True) -> list[str]:
        """Return the arguments of `docker run`."""
        return docker_run(self.launch, detach=detach)

    def shell(self, *, detach: bool = True) -> str:
        """Return the `docker run` command, ready for pasting."""
        return shell_line(self.line(detach=detach))

    def compose(self) -> str:
        """Return the compose file."""
        return compose(self.launch)

    def recipe(self, style: Format) -> str:
        """Return the recipe for another launcher."""
        return recipe(style, self.launch, self.served.model, self.command, self.served.extra)


def prepare(
    project: Project,
    cell: Cell,
    image: str,
    *,
    given: Mapping[str, str],
    environment: Mapping[str, str],
    models: str = HUB_CACHE,
    mods: Sequence[str] = (),
) -> Start:
    """Prepare a start; refuse settings that the image would refuse, and write the API key to a file.

    The key is among the settings or in the user's environment. The container applies `mods` when it starts.
    """
    chosen = choose_mods(project.matrix, cell, project.mods)
    kernels = project.wheel_lock(cell).kernels
    served = describe(project.matrix, cell, project.model_lock, chosen, kernels)
    known = [str(setting["name"]) for setting in served.description["settings"]]
    at_start = runtime_mods(project, cell, mods, known)
    given = at_start.over(given)
    key_file = find_key_file(_key_folder(project, cell), given, environment)
    settings = {name: value for name, value in given.items() if name not in KEY_SETTINGS}
    with_key = settings | ({"VLLM_API_KEY_FILE": str(key_file)} if key_file else {})
    found = Preview(project.root, served.description, served.model).dry_run(with_key)
    if found["secrets"]:
        raise KeyNotPassedError(
            "A setting contains a key, token or password.",
            where="the --set option",
            why="Commands, compose files and recipes show it to everyone.",
            fix="Set VLLM_API_KEY for the server's key; for a token, log in with `hf auth login`.",
        )
    launch = Launch(cell, pinned(image), served.description, settings, key_file, models, at_start.mounts)
    return Start(launch, served, tuple(found["command"]))


def settings_from(words: Sequence[str], option: str = "--set") -> dict[str, str]:
    """Parse settings given as NAME=VALUE."""
    for word in words:
        if not re.match(r"[A-Z][A-Z0-9_]*=", word):
            raise SettingRefusedError(
                f"{hidden_value(word)!r} is not a setting.",
                where=f"the {option} option",
                why="It is not written as NAME=VALUE.",
                fix=f"Write, for example, {option} MAX_MODEL_LEN=32768.",
            )
    return dict(word.split("=", 1) for word in words)


def hidden_value(word: str) -> str:
    """Return a word without what follows its equals sign, which may be a secret."""
    name, equals, _ = word.partition("=")
    return f"{name}=…" if equals else name


def recipe_format(name: str) -> Format:
    """Find a recipe format by name."""
    known: tuple[Format, ...] = get_args(Format)
    for style in known:
        if style == name:
            return style
    raise UnknownNameError(
        f"There is no recipe format {name!r}.",
        where="the --recipe option",
        why="Recipes are written for two launchers.",
        fix=did_you_mean(name, known).capitalize(),
    )


def published_reference(project: Project, cell: Cell) -> str:
    """Return a cell's image as registry and digest; the digest comes from the record of layers, or from its layout."""
    image = KnownLayers(project.known_layers).image(make_plan(project, cell))
    if image is not None:
        return f"{project.matrix.effective_registry}@{image.digest}"
    [(_, layout, _)] = built_layouts(project, [f"{cell}/{cell.machine}"], one=True)
    return f"{project.matrix.effective_registry}@{layout.manifest_digest()}"


def local_image(project: Project, cell: Cell) -> str:
    """Return the id of a cell's image in the Docker daemon; load the image if it is missing."""
    [(_, layout, name)] = built_layouts(project, [f"{cell}/{cell.machine}"], one=True)
    found = image_id(name)
    return found if found == layout.config_digest() else load(layout, name)


def _key_folder(project: Project, cell: Cell) -> Path:
    return project.build_folder(cell).parent / "run" / cell.slug
