"""Commands for compiled objects: push ccache's entries to the registry, and pull them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.commands import options
from imagefactory.commands.command import command, say

if TYPE_CHECKING:
    from imagefactory.locks.project import Project

MOST = "4"
WHOSE = "the objects compiled for this vLLM version (default: the matrix's)"


@command(
    help={"vllm": WHOSE, "most_gb": f"push at most this many gigabytes, those used last (default: {MOST})"}
)
def push(project: Project, vllm: str = "", most_gb: str = MOST) -> None:
    """Push the objects that were compiled here, so that other machines need not compile them."""
    from imagefactory.compile.object_sharing import push_objects

    limit = options.number("--most-gb", most_gb) or float(MOST)
    for shared in push_objects(project, vllm, limit):
        say(f"{shared.entries} objects, {shared.size / 1e9:.2f} GB, {shared.new} of them new")
        print(shared.reference)


@command(help={"vllm": WHOSE})
def pull(project: Project, vllm: str = "") -> None:
    """Pull objects that other machines compiled; what is here stays as it is."""
    from imagefactory.compile.object_sharing import pull_objects

    for shared in pull_objects(project, vllm):
        say(f"{shared.entries} objects, {shared.size / 1e9:.2f} GB, {shared.new} of them new")
        print(shared.reference)
