"""Pushing: a plan's image goes to the registry by its digest, under a staging tag that nobody is meant to pull.

What a layer comes out as is known before it is made (locks/layers.toml). So the registry is asked first, and a layer
that it has is not made: nothing is downloaded for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from imagefactory.build.assemble import make_layers, remember
from imagefactory.build.watch import Watcher
from imagefactory.environment.progress import Say
from imagefactory.errors.publishing import NotPromotableError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.oci.blob import Blob
from imagefactory.oci.image import Image
from imagefactory.oci.registry.image_push import PARALLEL, Pushable, Pushed, PushWatcher, push_image
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.image_documents import make_image
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Layer, Plan
from imagefactory.publish.tags import staging_tag
from imagefactory.store.digests import Sha256


@dataclass(frozen=True)
class Staged:
    """An image that lies in the registry, by its digest and under its staging tag."""

    plan: Plan
    image: Image
    pushed: Pushed


def push(
    project: Project,
    repository: Repository,
    cells: Sequence[Cell],
    watch: Watcher,
    say: Say,
    *,
    pushing: PushWatcher | None = None,
    workers: int | None = None,
) -> list[Staged]:
    """Make what the registry does not have, and upload it."""
    for cell in cells:
        refuse_unlocked(make_plan(project, cell), repository)
    known = KnownLayers(project.known_layers)
    with project.store.in_use():
        project.store.sweep()
        plans, blobs = make_layers(
            project,
            cells,
            watch,
            say,
            locked_only=True,
            workers=workers,
            known=known,
            elsewhere=partial(in_registry, repository, known),
        )
        staged: list[Staged] = []
        for plan in plans:
            image = make_image(plan, [blobs[layer.key] for layer in plan.layers])
            pushable = Pushable.of_image(image, project.store.blob)
            pushed = push_image(repository, pushable, tag=staging_tag(plan.key), watcher=pushing)
            staged.append(Staged(plan, image, pushed))
    remember(project, known, plans, blobs)
    return staged


def refuse_unlocked(plan: Plan, repository: Repository) -> None:
    """Keep images with other files than the locked ones off the registry."""
    if not plan.locked:
        raise NotPromotableError(
            f"{plan.target} cannot be published.",
            where=repository.reference.name,
            why="locked: the image has files that the lock does not name.",
            fix="Run `invoke lock --upgrade base` and commit the result.",
        )


def in_registry(repository: Repository, known: KnownLayers, layers: Sequence[Layer]) -> dict[Sha256, Blob]:
    """Find the layers that the registry has, of those whose outcome is on record."""
    recorded = [(layer.key, blob) for layer in layers if (blob := known.blob(layer.key)) is not None]
    with ThreadPoolExecutor(PARALLEL) as pool:
        there = pool.map(lambda item: repository.has_blob(item[1].digest), recorded)
        return {key: blob for (key, blob), has in zip(recorded, there, strict=True) if has}
