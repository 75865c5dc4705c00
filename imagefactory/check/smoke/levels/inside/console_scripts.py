"""Loads the entry point of every console script; prints those that fail."""

import contextlib
import io
import json
import os
import sys
from importlib.metadata import distributions
from pathlib import Path

failed: dict[str, str] = {}
loaded = 0
bin_folder = Path(sys.prefix, "bin")
argv = sys.argv[:]
for distribution in distributions():
    for entry in distribution.entry_points:
        # Entry points with extras belong to optional parts that are not installed.
        if entry.group != "console_scripts" or entry.extras:
            continue
        script = bin_folder / entry.name
        if not os.access(script, os.X_OK):
            failed[entry.name] = f"{script} is not an executable file"
            continue
        try:
            sys.argv = [str(script)]
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                entry.load()
            loaded += 1
        except BaseException as error:  # noqa: BLE001 - a script may do anything, even exit
            failed[entry.name] = f"{entry.value}: {type(error).__name__}: {str(error)[:200]}"
        finally:
            sys.argv = argv[:]
sys.stdout.write("\n" + json.dumps({"loaded": loaded, "failed": failed}) + "\n")
sys.stdout.flush()
os._exit(0)  # some packages leave endless threads
