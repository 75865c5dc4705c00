"""Runs the serve program: `python3 -I -S <this folder> [arguments]`."""  # noqa: INP001 - a folder to run

import os
import signal
import sys

if os.getpid() == 1:
    # Before anything else: the kernel drops what process 1 has no handler for, and Docker would kill it much later.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))

from program.main import main  # type: ignore[import-not-found]  # found when this folder is run

sys.exit(main(sys.argv[1:]))
