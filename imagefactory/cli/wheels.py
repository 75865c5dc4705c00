"""Commands for wheels: list, push and pull compiled ones, and archive all that a target needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import command, print_json, say, show

if TYPE_CHECKING:
    from imagefactory.project.project import Project

NAME = "only wheels of this package"
KEY = "only the wheel whose key starts with this"


@command(
    name="list",
    help={
        "name": NAME,
        "key": KEY,
        "remote": "also list the wheels in the registry (FACTORY_REGISTRY, else `registry` in matrix.yaml)",
        "json": options.JSON,
    },
)
def list_(project: Project, name: str = "", key: str = "", remote: bool = False, json: bool = False) -> None:
    """List the compiled wheels and what they were compiled from."""
    from imagefactory.cli.show.tables import wheels_table
    from imagefactory.lock.wheelhouse.share import listing

    rows = listing(project, name=name, key=key, remote=remote)
    if json:
        print_json([row.as_json() for row in rows])
    else:
        show(wheels_table(rows))


@command(help={"name": NAME, "key": KEY})
def push(project: Project, name: str = "", key: str = "") -> None:
    """Push compiled wheels to the registry, except those already there."""
    from imagefactory.lock.wheelhouse.share import push_all

    for moved in push_all(project, name=name, key=key):
        say(f"{moved.filename}: {moved.outcome}")
        print(moved.reference)


@command(help={"name": NAME, "key": KEY})
def pull(project: Project, name: str = "", key: str = "") -> None:
    """Pull compiled wheels from the registry: those the locks name, or those you select."""
    from imagefactory.lock.wheelhouse.share import pull_all

    for moved in pull_all(project, name=name, key=key):
        say(f"{moved.filename}: {moved.outcome}")
        print(moved.reference)


@command(help={"target": options.TARGETS})
def archive(project: Project, target: list[str]) -> None:
    """Push every locked file of a target to the registry; builds take from there what an index has lost."""
    from imagefactory.assemble.archive import archive as push_files
    from imagefactory.project.targets import select

    for archived in push_files(project, select(project.matrix, target), say):
        say(
            f"{archived.files} files, {archived.size / 1e9:.2f} GB, {archived.pushed / 1e9:.2f} GB of them new"
        )
        print(archived.reference)
