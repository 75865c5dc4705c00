"""Checks that a machine has enough free disk space for a job, before hours of work."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from imagefactory.errors.ci import NoRoomError
from imagefactory.plan.plan import Plan

MARGIN: Final = 0.5
"""GB for everything that is small."""


def space_needed(plans: Iterable[Plan], *, pulled: bool = False) -> float:
    """Estimate how many GB a job needs at most: to assemble images, or (`pulled`) to have an engine pull them."""
    layers = {layer.key: layer for plan in plans for layer in plan.layers}.values()
    packed = sum(layer.download for layer in layers)
    # Assembling keeps the files and the layers made of them; an engine keeps layers until they are unpacked.
    return (packed + (sum(layer.unpacked for layer in layers) if pulled else packed)) / 1e9 + MARGIN


def refuse_full(folder: Path, need_gb: float) -> float:
    """Raise NoRoomError if a disk has less free space than needed; return what is free, in GB."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    if free < need_gb:
        raise NoRoomError(
            f"There are {free:.1f} GB free; {need_gb:.1f} GB are needed.",
            where=folder,
            why="GitHub promises 14 GB on its machines, and most have more.",
            fix="Run the job again: another machine may have more. On your own, `invoke clean` frees the cache.",
        )
    return free
