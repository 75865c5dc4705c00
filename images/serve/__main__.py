"""Runs the serve program: `python3 -I -S <this folder> [arguments]`."""  # noqa: INP001 - a folder to run

import sys

from program.main import main  # type: ignore[import-not-found]  # found when this folder is run

sys.exit(main(sys.argv[1:]))
