"""Imports the server that the first argument names; prints the seconds that took, and the version."""

import json
import sys
import time
from importlib import import_module

started = time.perf_counter()
server = import_module(sys.argv[1])
seconds = time.perf_counter() - started
sys.stdout.write(json.dumps({"seconds": round(seconds, 2), "version": server.__version__}) + "\n")
