"""How long a plan takes, next to what starting Python and invoke costs anyway.

Run it with the environment's Python: `.venv/bin/python tests/bench/plan_speed.py`. Times are never asserted; the
ratio to the baseline of the same run is what can be compared between machines.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 15
INVOKE = [sys.executable, "-m", "invoke", "--search-root", str(ROOT)]
COMMANDS = {
    "import pydantic, yaml": [sys.executable, "-c", "import pydantic, yaml"],
    "invoke --version": [*INVOKE, "--version"],
    "plan --target gemma4-31b --json": [*INVOKE, "plan", "--target", "gemma4-31b", "--json"],
    "plan --target gemma4-31b": [*INVOKE, "plan", "--target", "gemma4-31b"],
    "targets": [*INVOKE, "targets"],
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    # Round by round, so that a machine that slows down slows everything down.
    rounds = [{name: seconds(command) for name, command in COMMANDS.items()} for _ in range(ROUNDS + 1)]
    times = {
        name: [taken[name] for taken in rounds[1:]] for name in COMMANDS
    }  # the first one warms the caches
    baseline = statistics.median(times[next(iter(COMMANDS))])
    print(f"{'command':<34}{'median':>9}{'best':>9}{'ratio':>8}")
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:<34}{median:>7.2f} s{min(taken):>7.2f} s{median / baseline:>8.1f}")


if __name__ == "__main__":
    main()
