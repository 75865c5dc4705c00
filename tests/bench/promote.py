"""Measures promotion and rollback: requests to the registry, and the wait that keeps two writers apart.

Set FACTORY_REGISTRY to a registry that the target was published to twice, once from this checkout, and run
`.venv/bin/python -m tests.bench.promote --target tiny/cpu`. It moves the target's tags back and forth, leaves them at
this checkout's image, and leaves a note in the catalog. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.make import make_plan
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from imagefactory.publish.attest.signing import find_trust
from imagefactory.publish.outcomes import Outcomes
from imagefactory.publish.promote import promote
from imagefactory.publish.rollback import rollback
from imagefactory.publish.staging import find_staged
from tests.bench.measuring import timed

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="tiny/cpu")
    project = Project(ROOT)
    cell = select_one(project.matrix, parser.parse_args().target)
    with Repository.open(project.matrix.effective_registry) as repository:

        def promote_again() -> None:
            plans = Outcomes({cell: make_plan(project, cell)})
            staged = find_staged(project, repository, plans)
            outcome = promote(project, repository, staged, find_trust(project), again=True)
            for error in outcome.refused:
                raise error

        promote_again()  # also gets the token
        rounds = [
            (timed(lambda: rollback(project, repository, cell)).seconds, timed(promote_again).seconds)
            for _ in range(ROUNDS)
        ]
        window = repository.window.wait
    for name, values in zip(("rollback", "promote"), zip(*rounds, strict=True), strict=True):
        print(f"{name:<10} median {statistics.median(values):.2f} s, slowest {max(values):.2f} s")
    print(f"of which {window:g} s are the wait for others")


if __name__ == "__main__":
    main()
