"""Commands for recipes of other launchers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.commands import options
from imagefactory.commands.command import command, say

if TYPE_CHECKING:
    from imagefactory.locks.project import Project


@command(
    positional=["folder"],
    help={
        "folder": "an empty folder, or one that an earlier export wrote",
        "target": f"{options.TARGETS} (default: the first model)",
        "all": "every locked target",
    },
)
def export(project: Project, folder: str, target: list[str], all: bool = False) -> None:
    """Write a registry of sparkrun recipes, and eugr recipes beside it, with images by digest."""
    from imagefactory.build.recipes.exporting import registry_of, write_registry
    from imagefactory.environment.paths import expand_home
    from imagefactory.locks.project import locked_cells
    from imagefactory.matrix.targets import select

    options.at_most_one(target=target, all=all)
    cells = locked_cells(project) if all else select(project.matrix, target)
    exported = registry_of(project, cells)
    write_registry(exported.files, expand_home(folder, "FOLDER").absolute())
    for line in exported.account:
        say(f"- {line}")
    for name in sorted(exported.files):
        print(name)
