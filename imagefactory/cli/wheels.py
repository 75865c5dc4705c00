"""Commands for compiled wheels: list, push and pull them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import command, print_json, say, show

if TYPE_CHECKING:
    from imagefactory.project.project import Project

KEY = "only the wheel whose key starts with this"


@command(
    name="list",
    help={
        "key": KEY,
        "remote": "also list the wheels in the registry (FACTORY_REGISTRY, else `registry` in matrix.yaml)",
        "json": options.JSON,
    },
)
def list_(project: Project, key: str = "", remote: bool = False, json: bool = False) -> None:
    """List the compiled wheels and what they were compiled from."""
    from imagefactory.cli.show.tables import wheels_table
    from imagefactory.lock.wheelhouse.share import listing

    rows = listing(project, key=key, remote=remote)
    if json:
        print_json([row.as_json() for row in rows])
    else:
        show(wheels_table(rows))


@command(help={"key": KEY})
def push(project: Project, key: str = "") -> None:
    """Push compiled wheels to the registry, except those already there."""
    from imagefactory.lock.wheelhouse.share import push_all

    for filename, outcome, reference in push_all(project, key=key):
        say(f"{filename}: {outcome}")
        print(reference)


@command(help={"key": KEY})
def pull(project: Project, key: str = "") -> None:
    """Pull compiled wheels from the registry: those the locks name, or those you select."""
    from imagefactory.lock.wheelhouse.share import pull_all

    for filename, outcome, reference in pull_all(project, key=key):
        say(f"{filename}: {outcome}")
        print(reference)
