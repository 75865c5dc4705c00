"""Rehearses five nights of the workflow on this machine, and prints what each job took and did.

    .venv/bin/python -m tools.rehearse_night FOLDER [TARGET …]

FOLDER must be new: it gets a fork, a registry, and the log of each night. Full-size images take some 30 GB there, and
more in Docker. The mod of the third night breaks the tiny model, which is always among the targets.
"""

import sys
from pathlib import Path

from tests.fixtures.tiny_image import TARGET
from tests.fixtures.whole_night import five_nights, rehearsal, stand_ins


def main() -> None:
    folder, targets = Path(sys.argv[1]).absolute(), " ".join([TARGET, *sys.argv[2:]])
    print(f"# Five nights of {targets}\n\n{stand_ins()}", flush=True)
    with rehearsal(folder, targets) as fork:
        for night in five_nights(fork, TARGET):
            print(night.table(), flush=True)


if __name__ == "__main__":
    main()
