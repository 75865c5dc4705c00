"""All commands of the factory, as `invoke --list` shows them."""

from __future__ import annotations

import os

if os.name == "nt":
    raise SystemExit("Windows is not supported; WSL 2 works, as on any Linux.")

from pathlib import Path

from invoke.collection import Collection
from invoke.main import program as plain_invoke

from imagefactory.commands import (
    bench,
    ci,
    images,
    kernels,
    keys,
    matrix,
    mods,
    publishing,
    rebuilds,
    recipes,
    repository,
    site,
    wheels,
)
from imagefactory.commands.program import take_over


def collection(root: Path) -> Collection:
    """Return all commands, set up to act on one checkout."""
    take_over(plain_invoke)
    namespace = Collection()
    for module in (matrix, images, kernels, publishing, repository, site):
        for task in Collection.from_module(module).tasks.values():
            namespace.add_task(task)
    for module in (bench, mods, recipes, wheels, keys, rebuilds, ci):
        namespace.add_collection(Collection.from_module(module))
    namespace.configure({"checkout": str(root)})
    return namespace
