"""Imports vLLM; prints the seconds that took, and the version."""

import json
import sys
import time

started = time.perf_counter()
import vllm  # noqa: E402 - timed

seconds = time.perf_counter() - started
sys.stdout.write(json.dumps({"seconds": round(seconds, 2), "version": vllm.__version__}) + "\n")
