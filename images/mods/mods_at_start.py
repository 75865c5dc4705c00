"""Applies mods before the server starts, with the Python of the image's environment.

The serve program itself runs without site-packages, to start fast. The package `images.shipped`, which the image has
beside this file, needs them.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PYTHON = "/opt/venv/bin/python3"
MODULES = str(Path(__file__).absolute().parent / "python")


def apply_mods(names: Sequence[str], folder: str) -> None:
    """Apply mods of a folder; a RuntimeError holds the reason of a failure."""
    command = [PYTHON, "-m", "images.shipped.mods.at_start", folder, *names]
    environment = {**os.environ, "PYTHONPATH": MODULES, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().removeprefix("error: ") or f"exit code {done.returncode}")
    sys.stderr.write(done.stderr)
