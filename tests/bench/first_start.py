"""Measures the first start of containers: `import vllm`, and a server up to its health check.

    .venv/bin/python -m tests.bench.first_start without=IMAGE with=IMAGE [--rounds 3] [--no-serve]

Each image is named and given as an OCI layout or as an image of the Docker daemon; the first one is the baseline. Every
container is new, with empty caches, and the images take turns. The second import of a container finds the bytecode that
the first one wrote: the ratio of the two is what missing bytecode costs. `--no-serve` is for images that need a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

from imagefactory.check.smoke.containers import Containers, docker
from imagefactory.check.smoke.subject import bring_into_daemon, subject_of_image
from imagefactory.oci.format import VENV
from imagefactory.project.project import Project
from tests.bench.measuring import row
from tests.bench.pull import named

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 900
IMPORTS = """
import json, subprocess, sys, time
found = []
for _ in range(2):
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import vllm"], check=True, capture_output=True)
    found.append(time.monotonic() - started)
print(json.dumps(found))
"""


def imports(image: str) -> tuple[float, float]:
    """Return the seconds of the first and the second import in a new container."""
    words = ("-c", IMPORTS)
    options = ("--entrypoint", f"/{VENV}/bin/python3")
    done = Containers(uuid4().hex[:12]).once(image, *words, options=options, timeout=PATIENCE)
    if done.returncode:
        sys.exit(f"{image}: {done.stderr}")
    first, second = json.loads(done.stdout.splitlines()[-1])
    return first, second


def start(image: str) -> float:
    """Return the seconds from `docker run` to the first answer of the health check."""
    containers, started = Containers(uuid4().hex[:12]), time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder, containers.serve(image, Path(folder)) as server:
            server.wait_until_healthy(PATIENCE)
            return time.monotonic() - started
    finally:
        containers.remove_all()  # also the cache volume: the next start is a first one again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=named, nargs="+", metavar="NAME=IMAGE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-serve", action="store_true")
    options = parser.parse_args()
    project = Project(ROOT)
    loaded: list[str] = []
    taken: dict[tuple[str, str], list[float]] = {}
    try:
        ids: dict[str, str] = {}
        for name, image in options.images:
            ids[name], own = bring_into_daemon(subject_of_image(project, image))
            loaded += [own] if own else []
        for _ in range(options.rounds):
            for name, image in ids.items():
                figures = dict(zip(("first import", "second import"), imports(image), strict=True))
                if not options.no_serve:
                    figures["start to health"] = start(image)
                for what, seconds in figures.items():
                    taken.setdefault((what, name), []).append(seconds)
                    print(f"# {name}: {what} {seconds:.1f} s", file=sys.stderr)
    finally:
        for own in loaded:
            docker("rmi", own)
    baseline = next(iter(ids))
    row("what", "image", "median", "ratio")
    row("---", "---", "---:", "---:")
    for (what, name), values in sorted(taken.items()):
        middle = statistics.median(values)
        row(what, name, f"{middle:.1f} s", f"{middle / statistics.median(taken[what, baseline]):.2f}")


if __name__ == "__main__":
    main()
