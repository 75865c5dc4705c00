"""Measures `history`, `catalog`, `site` and `prune` with catalogs of 1,000 images and more.

`.venv/bin/python -m tests.bench.catalog 1000 10000 100000` uses a registry that is made up in the same process; its
memory is not counted. Nothing is asserted.
"""

import argparse
import multiprocessing
import re
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from imagefactory.cli.show.tables import history_table
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.publish.catalog import Catalog
from imagefactory.publish.history import current_images, history
from imagefactory.publish.prune import Policy, prune
from imagefactory.publish.stored_catalog import read_catalog, write_catalog
from imagefactory.publish.tags import moving_tags
from imagefactory.site.rendering import render
from imagefactory.site.site_contents import gather
from imagefactory.site.stock import RegistryRecords, take_stock
from tests.fixtures.big_catalog import START, StandIn, big_catalog
from tests.fixtures.small_site import make_site_checkout

LATER = START + timedelta(days=3650)


def memory(what: str) -> int:
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text("utf-8"))
    return int(found[1]) * 1024 if found else 0


def measured(work: Callable[[], object]) -> None:
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak begins here
    before, started, spent = memory("VmRSS"), time.perf_counter(), time.process_time()
    work()
    taken, spent = time.perf_counter() - started, time.process_time() - spent
    print(f"{taken:.2f} s | {spent:.2f} s | {(memory('VmHWM') - before) / 1e6:.0f} MB |", flush=True)


def steps(
    project: Project, repository: Repository, cells: tuple[Cell, ...], count: int
) -> dict[str, Callable[[], object]]:
    """Return what is measured, by name."""
    cell, keep = cells[0], count // len(cells) * 9 // 10
    tags = moving_tags(project.matrix, cell)
    more = big_catalog(count + 1, cells)

    def read() -> Catalog:
        return read_catalog(repository).catalog

    def site() -> None:
        render(gather(take_stock(project, RegistryRecords("registry", asked=True, catalog=read()))))

    return {
        "reading alone": read,
        "history": lambda: history_table(history(read(), tags, cell.platform)),
        "catalog": lambda: current_images(read()),
        "site": site,
        "prune, dry": lambda: prune(repository, Policy(), moment=LATER),
        "prune, a tenth goes": lambda: prune(repository, Policy(keep=keep), delete=True, moment=LATER),
        "one more": lambda: write_catalog(repository, lambda old: old.with_event(more.events[-1], more.images[-1])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="+", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = make_site_checkout(Path(folder) / "checkout")
        cells = tuple(take_stock(project, RegistryRecords("")).planned)
        for count in options.images:
            repository = StandIn(big_catalog(count, cells)).repository
            for name, step in steps(project, repository, cells, count).items():
                print(f"| {count:,} | {name} | ", end="", flush=True)
                # Each in a process of its own.
                child = multiprocessing.get_context("fork").Process(target=measured, args=(step,))
                child.start()
                child.join()


if __name__ == "__main__":
    main()
