"""Measures what it costs to make sure that the files of the cache are what their names say.

Run `.venv/bin/python -m tests.bench.cache_checks`; it makes its own wheels and needs 3 GB of disk. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from imagefactory.build.assemble import assemble
from imagefactory.locks.project import Project
from imagefactory.oci.layout import archive
from imagefactory.plan.make import make_plan
from imagefactory.store.digests import file_sha256
from tests.bench.measuring import Spent, middle, row, timed
from tests.fixtures.small_factory import CELL, RecordingWatcher, SmallFactory


def build(project: Project) -> None:
    assemble(project, [make_plan(project, CELL)], RecordingWatcher(), lambda _: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--big", type=int, default=40, help="wheels of 40 MB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        factory = SmallFactory(Path(name) / "small", big=options.big)
        os.environ.update(factory.environment())
        measure(factory, options.rounds)


def measure(factory: SmallFactory, rounds: int) -> None:
    project = factory.project
    [built] = factory.build()
    blobs = [project.store.blob(blob.digest) for blob in built.image.layers]

    def forgotten() -> None:
        (factory.cache / "facts" / "hashed.json").unlink()
        build(project)

    def export() -> None:
        for _ in archive(built.layout, "a:b"):
            pass

    steps: dict[str, Callable[[], object]] = {
        "unchanged build": lambda: build(project),
        "unchanged build that hashes every layer": forgotten,
        "reading and hashing the layers, one after the other": lambda: [*map(file_sha256, blobs)],
        "export, to nowhere": export,
    }
    taken: dict[str, list[Spent]] = {step: [] for step in steps}
    for _ in range(rounds):
        for step, work in steps.items():
            build(project)  # remembers what the step before has touched
            taken[step].append(timed(work))
    size = sum(blob.stat().st_size for blob in blobs)
    row(f"{len(blobs)} layers, {size / 1e9:.2f} GB", "time", "ratio", "processor", "ratio", columns=5)
    row("---", *["---:"] * 4)
    least = middle(taken["unchanged build"])
    for step, values in taken.items():
        spent = middle(values)
        ratios = f"{spent.seconds / least.seconds:.1f}", f"{spent.processor / least.processor:.1f}"
        row(step, f"{spent.seconds:.2f} s", ratios[0], f"{spent.processor:.2f} s", ratios[1], columns=5)


if __name__ == "__main__":
    main()
