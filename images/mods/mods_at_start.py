"""Applies mods before the server starts: hands over to the environment's Python, which has what that needs.

The serve program runs without site-packages, to start fast; reading and applying mods is done by the package
`images.shipped`, which lies in the image beside this file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

PYTHON = "/opt/venv/bin/python3"
MODULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python")


def apply_mods(names: Sequence[str], folder: str) -> None:
    """Apply mods of a folder; a failure is raised with the reason that the factory gives."""
    command = [PYTHON, "-m", "images.shipped.mods.at_start", "--folder", folder]
    for name in names:
        command += ["--name", name]
    environment = {**os.environ, "PYTHONPATH": MODULES, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().removeprefix("error: ") or f"exit code {done.returncode}")
    sys.stderr.write(done.stderr)
