"""Compiled wheels: listed, pushed to the registry, pulled from it."""

from __future__ import annotations

from invoke.context import Context

from imagefactory.commands.checkout import checkout_root
from imagefactory.commands.command import command, print_json, say

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
def list_(context: Context, name: str = "", key: str = "", remote: bool = False, json: bool = False) -> None:
    """Show the compiled wheels that are kept, and what they were compiled from."""
    from imagefactory.commands.show import terminal
    from imagefactory.locks.project import Project
    from imagefactory.resolve.wheelhouse.share import listing

    rows = listing(Project(checkout_root()), name=name, key=key, remote=remote)
    if json:
        print_json([row.as_json() for row in rows])
    else:
        terminal.out.print(terminal.wheels_table(rows))


@command(help={"name": NAME, "key": KEY})
def push(context: Context, name: str = "", key: str = "") -> None:
    """Bring compiled wheels into the registry, each as an OCI artifact; what is there is not sent again."""
    from imagefactory.locks.project import Project
    from imagefactory.resolve.wheelhouse.share import push_all

    for moved in push_all(Project(checkout_root()), name=name, key=key):
        say(f"{moved.filename}: {moved.outcome}")
        print(moved.reference)


@command(help={"name": NAME, "key": KEY})
def pull(context: Context, name: str = "", key: str = "") -> None:
    """Bring compiled wheels from the registry: those that the locks name, or those that are asked for."""
    from imagefactory.locks.project import Project
    from imagefactory.resolve.wheelhouse.share import pull_all

    for moved in pull_all(Project(checkout_root()), name=name, key=key):
        say(f"{moved.filename}: {moved.outcome}")
        print(moved.reference)
