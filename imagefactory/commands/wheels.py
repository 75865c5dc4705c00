"""Compiled wheels: listed, pushed to the registry, pulled from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.commands.command import command, print_json, say

if TYPE_CHECKING:
    from imagefactory.locks.project import Project

NAME = "only wheels of this package"
KEY = "only the wheel whose key begins like this"


@command(
    name="list",
    help={
        "name": NAME,
        "key": KEY,
        "remote": "also list what the registry has (FACTORY_REGISTRY, else `registry` in matrix.yaml)",
        "json": "print JSON",
    },
)
def list_(project: Project, name: str = "", key: str = "", remote: bool = False, json: bool = False) -> None:
    """Show the compiled wheels that are kept, and what they were compiled from."""
    from imagefactory.commands.show import tables, terminal
    from imagefactory.resolve.wheelhouse.share import listing

    rows = listing(project, name=name, key=key, remote=remote)
    if json:
        print_json([row.as_json() for row in rows])
    else:
        terminal.out.print(tables.wheels_table(rows))


@command(help={"name": NAME, "key": KEY})
def push(project: Project, name: str = "", key: str = "") -> None:
    """Bring compiled wheels into the registry, each as an OCI artifact; what is there is not sent again."""
    from imagefactory.resolve.wheelhouse.share import push_all

    for moved in push_all(project, name=name, key=key):
        say(f"{moved.filename}: {moved.outcome}")
        print(moved.reference)


@command(help={"name": NAME, "key": KEY})
def pull(project: Project, name: str = "", key: str = "") -> None:
    """Bring compiled wheels from the registry: those that the locks name, or those that are asked for."""
    from imagefactory.resolve.wheelhouse.share import pull_all

    for moved in pull_all(project, name=name, key=key):
        say(f"{moved.filename}: {moved.outcome}")
        print(moved.reference)
