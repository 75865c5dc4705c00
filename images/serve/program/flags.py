"""Finds the flags of this image's server in its source code.

Importing a server takes seconds, reading the files that define its flags a few milliseconds. The search finds every
flag, and some words that are none.
"""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from .image import VENV

_OPTION = re.compile(r"[\"'](--?[A-Za-z][\w.-]*)[\"']")
_FIELD = re.compile(r"^    ([a-z]\w*): ", re.MULTILINE)
NEAR = 0.75
"""How similar a flag is to the one that it is taken for."""


def find_package(name: str) -> str | None:
    found = sorted(Path(os.environ.get("FACTORY_SITE") or f"{VENV}/lib").glob(f"*/site-packages/{name}/"))
    return str(found[0]) if found else None


def known(folder: str, files: Iterable[str]) -> set[str]:
    """Return everything in the argument files of a server that may be a flag."""
    found: set[str] = set()
    places = [Path(folder, name) for name in files]
    for path in (path for place in places for path in (place.glob("*.py") if place.is_dir() else [place])):
        try:
            text = path.read_text("utf-8")
        except (OSError, ValueError):
            continue
        found.update(option.replace("_", "-") for option in _OPTION.findall(text))
        # Some flags are fields of a dataclass.
        found.update("--" + field.replace("_", "-") for field in _FIELD.findall(text))
    return found


def unknown(arguments: tuple[str, ...], flags: set[str]) -> list[str]:
    """List the flags among arguments that the server does not have; empty if its flags are unknown."""
    if not flags:
        return []
    names = (word.partition("=")[0] for word in arguments if re.match(r"--[A-Za-z]", word))
    return [name for name in names if not _is_known(name, flags)]


def nearest(name: str, flags: set[str]) -> str:
    """Return the flag that a misspelt one may stand for; empty if none is near."""
    near = get_close_matches(name.replace("_", "-"), sorted(flags), n=1, cutoff=NEAR)
    return near[0] if near else ""


def _is_known(name: str, flags: set[str]) -> bool:
    # --compilation-config.mode sets one key of a JSON option; --no-x switches x off.
    flag = name.partition(".")[0].replace("_", "-").rstrip("+")
    return flag in flags or (flag.startswith("--no-") and f"--{flag[5:]}" in flags) or flag == "--help"
