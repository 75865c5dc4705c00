"""Describes to the hook in the server's processes what to copy from its log."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from .servers.server import LogLines

_FOLDER = str(Path(__file__).absolute().parents[1] / "hook")


def variables(logger: str, lines: LogLines, file: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have the hook copy log lines to a file; without one it only hides the key."""
    task = {"logger": logger, "file": file, **lines._asdict()}
    others = [
        path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in {"", _FOLDER}
    ]
    return {"IMAGEFACTORY_LOG": json.dumps(task), "PYTHONPATH": os.pathsep.join([_FOLDER, *others])}
