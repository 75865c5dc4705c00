"""Commands for machines without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import command, say, select
from imagefactory.environment.setup import PYTHONS
from imagefactory.errors import unknown_name
from imagefactory.store.progress import count, size

if TYPE_CHECKING:
    from imagefactory.project.project import Project


@command(
    positional=["folder"],
    folder="an empty folder, or one that an earlier run wrote",
    target=f"an image that is built here: {options.TARGETS} (default: the first model)",
    image="also this OCI layout, such as one of `build --fat`; it goes to build/; repeatable",
    also="also this file or folder, such as a model's; it goes to build/offline; repeatable",
    part="the largest part, in MB (default: 50)",
    python=f"a Python of the other machine; repeatable (default: {', '.join(PYTHONS)})",
)
def offline(
    project: Project,
    folder: str,
    target: list[str],
    image: list[str],
    also: list[str],
    python: list[str],
    part: str = "",
) -> None:
    """Pack this checkout, its environment and built images for a machine without a network, in small parts.

    Bring the folder there, part by part if need be, and run `python3 unpack.py` in it: that checks the parts, and
    leaves a checkout whose commands work, with images to load, run, test, measure and publish. Images travel in the
    order in which they are named; each can be used as soon as its parts are there.
    """
    from imagefactory.offline.packing import Cargo, pack

    place = options.new_folder("FOLDER", options.filled("FOLDER", folder)) or Path()
    for version in python:
        if version not in PYTHONS:
            raise unknown_name("Python", version, PYTHONS, "the --python option")
    largest = options.number("--part", part, least=1) or 50
    named = [cell for name in target or [""] for cell in select(project, [name] if name else [])]
    cargo = Cargo(
        list(dict.fromkeys(named)),
        [options.existing("--image", name, folder=True) for name in image],
        [options.existing("--also", name, folder=Path(name).expanduser().is_dir()) for name in also],
        python or PYTHONS,
    )
    total = pack(project, cargo, place, int(largest * 1_000_000), say)
    parts = count(len([*place.glob("part-*")]), "part")
    say(f"{parts}, {size(total)}; there, run `python3 unpack.py` in this folder:")
    print(place)
