"""Measures the disk space that assembling and pushing an image from nothing takes: GitHub promises a job 14 GB.

    .venv/bin/python -m tests.bench.disk --target gemma4-31b --folder /a/large/disk

The cache is empty, and everything written for the job is added up several times a second. The registry's own copy is
not part of that: it needs half as much again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from imagefactory.ci.jobs import refuse_full, space_needed
from imagefactory.plan.make import make_plan
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from tests.fixtures.engines import running_registry

ROOT = Path(__file__).resolve().parents[2]
GOAL = 10.0
"""GB."""
SPARED = 2_000_000_000
"""Bytes that stay free for others."""


def used(folder: Path) -> int:
    """Count the bytes that files take on the disk; what has several names counts once."""
    found: dict[int, int] = {}
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(path, name))  # noqa: PTH118 - many times a second
            except FileNotFoundError:
                continue
            found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def measure(target: str, folder: Path) -> dict[str, float | str]:
    project = Project(ROOT)
    cell = select_one(project.matrix, target)
    expected = space_needed([make_plan(project, cell)])
    free = refuse_full(folder, 1.5 * expected)
    with (
        TemporaryDirectory(prefix="registry-", dir=folder) as data,
        TemporaryDirectory(prefix="disk-", dir=folder) as scratch,
        running_registry(Path(data)) as address,
    ):
        work = Path(scratch)
        (work / "tmp").mkdir()
        environment = {
            **os.environ,
            "FACTORY_CACHE": str(work / "cache"),
            "FACTORY_REGISTRY": f"{address}/bench/disk",
            "TMPDIR": str(work / "tmp"),
        }
        command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "ci.push", "--target"]
        began = time.monotonic()
        peak = 0
        with subprocess.Popen([*command, f"{cell}/{cell.machine}"], env=environment, cwd=ROOT) as process:
            while process.poll() is None:
                peak = max(peak, used(work))
                if shutil.disk_usage(work).free < SPARED:
                    process.terminate()
                    sys.exit("the disk is nearly full; others need it, too")
                time.sleep(0.3)
        if process.returncode:
            sys.exit(process.returncode)
        return {
            "target": str(cell),
            "seconds": round(time.monotonic() - began, 1),
            "peak_gb": round(max(peak, used(work)) / 1e9, 2),
            "left_gb": round(used(work) / 1e9, 2),
            "pushed_gb": round(used(Path(data)) / 1e9, 2),
            "reckoned_gb": round(expected, 2),
            "free_before_gb": round(free, 1),
            "goal_gb": GOAL,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default=next(iter(Project(ROOT).matrix.models)))
    parser.add_argument("--folder", type=Path, default=Path.cwd())
    options = parser.parse_args()
    found = measure(options.target, options.folder)
    print(json.dumps(found, indent=1))
    sys.exit(float(found["peak_gb"]) >= GOAL)


if __name__ == "__main__":
    main()
