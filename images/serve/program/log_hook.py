"""Describes to the hook in the server's processes what to copy from its log."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from .servers.server import Server

DESCRIPTION = "IMAGEFACTORY_LOG"
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hook")  # noqa: PTH100, PTH118, PTH120 - see image.py


def variables(server: Server, file: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have the hook copy log lines to a file; without one it only hides the key."""
    task = {"logger": server.name, "file": file, **server.log._asdict()}
    others = [
        path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path != _FOLDER
    ]
    return {DESCRIPTION: json.dumps(task), "PYTHONPATH": os.pathsep.join([_FOLDER, *others])}
