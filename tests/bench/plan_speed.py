"""Measures planning, beside what starting Python and invoke costs anyway.

Run `.venv/bin/python -m tests.bench.plan_speed`. Nothing is asserted; compare ratios to the baseline of the same run
between machines.
"""

import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.bench.measuring import timed

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
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return timed(partial(subprocess.run, command, cwd=ROOT, check=True, **quiet)).seconds


def main() -> None:
    # Round by round, so that a machine that slows down slows everything down.
    rounds = [{name: seconds(command) for name, command in COMMANDS.items()} for _ in range(ROUNDS + 1)]
    # The first round warms the caches.
    times = {name: [taken[name] for taken in rounds[1:]] for name in COMMANDS}
    baseline = statistics.median(times[next(iter(COMMANDS))])
    print(f"{'command':<34}{'median':>9}{'best':>9}{'ratio':>8}")
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:<34}{median:>7.2f} s{min(taken):>7.2f} s{median / baseline:>8.1f}")


if __name__ == "__main__":
    main()
