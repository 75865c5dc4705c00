"""Writes a pair's start for people and other launchers: commands, compose files, and units for Podman."""

from __future__ import annotations

from imagefactory.errors import UsageError
from imagefactory.launch.docker_run import compose, docker_run, shell_line
from imagefactory.launch.launchers import QUADLET, quadlet
from imagefactory.pair.up import Pair

WAYS = {"": lambda launch: shell_line(docker_run(launch)) + "\n", "compose": compose, QUADLET: quadlet}


def shown(pair: Pair, way: str) -> str:
    """Return both starts, the second machine's first, each after a comment that names its machine."""
    if way not in WAYS:
        raise UsageError(
            "bad-option",
            f"There is no recipe {way!r} for a pair.",
            where="the --recipe option",
            why="Other launchers start both machines themselves.",
            fix=f"Use --recipe {QUADLET}, --compose or --print.",
        )
    named = {pair.there.name: pair.worker, "this machine": pair.head}
    return "\n".join(f"# {name}\n{WAYS[way](launch)}" for name, launch in named.items())
