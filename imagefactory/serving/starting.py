"""What `invoke run` does: settle how a cell's image is started, then print, compose, export or start it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from imagefactory.cells import Cell
from imagefactory.launch import Served, describe
from imagefactory.mods.choose import choose_mods
from imagefactory.project import Project
from imagefactory.serving.preview import Preview
from imagefactory.serving.recipes import Format, recipe
from imagefactory.serving.run import (
    HUB_CACHE,
    Launch,
    compose,
    docker_run,
    pinned,
    shell_line,
    write_key_file,
)


@dataclass(frozen=True)
class Start:
    """A start that the serve program has accepted."""

    launch: Launch
    served: Served
    command: tuple[str, ...]
    """What vLLM will run."""

    def line(self, *, detach: bool = True) -> list[str]:
        """Give the words of the `docker run` line."""
        return docker_run(self.launch, detach=detach)

    def shell(self, *, detach: bool = True) -> str:
        """Give the `docker run` line, ready to be pasted."""
        return shell_line(self.line(detach=detach))

    def compose(self) -> str:
        """Give the compose file."""
        return compose(self.launch)

    def recipe(self, style: Format) -> str:
        """Give the recipe for another tool."""
        return recipe(
            style,
            self.launch.cell,
            image=self.launch.image,
            description=self.launch.description,
            model=self.served.model,
            command=list(self.command),
            env=self.served.extra,
        )


def prepare(
    project: Project,
    cell: Cell,
    image: str,
    *,
    given: Mapping[str, str] | None = None,
    api_key: str = "",
    models: str = HUB_CACHE,
    name: str = "",
) -> Start:
    """Settle a start. Settings that the image would refuse are refused here; a key goes into a file of its own."""
    chosen = choose_mods(project.matrix, cell, project.mods)
    kernels = project.wheel_lock(cell).kernels
    served = describe(project.matrix, cell, project.model_lock, chosen, kernels)
    settings = dict(given or {})
    command = Preview(project.root, served.description, served.model).command(settings)
    key_file = write_key_file(_key_folder(project, cell), api_key) if api_key else None
    launch = Launch(cell, pinned(image), served.description, settings, key_file, models, name)
    return Start(launch, served, tuple(command))


def _key_folder(project: Project, cell: Cell) -> Path:
    return project.build_folder(cell).parent / "run" / cell.slug
