"""Staging: uploads the image of a plan by digest, under a staging tag that nobody is meant to pull.

The digest of a layer is known before it is built (locks/layers.toml). So a layer that the registry already has is not
built, and its inputs are not downloaded. A step is taken with several images; one that fails does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from imagefactory.assemble.assemble import BuildRun, make_layers
from imagefactory.assemble.layer_records import remember
from imagefactory.errors import BuildError, FactoryError, RegistryError, TrustError
from imagefactory.oci.image import MANIFEST_TYPE, Blob, Image
from imagefactory.oci.registry.image_push import PARALLEL, Pushable, Pushed, push_image
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Layer, Plan, make_image
from imagefactory.project.cells import Cell
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.run import PublishRun
from imagefactory.publish.tags import staging_tag
from imagefactory.store.digests import Digest, Sha256, digest_of
from imagefactory.store.progress import Say

T = TypeVar("T")
U = TypeVar("U")


@dataclass
class Outcomes(Generic[T]):
    """The results of a step, by cell, and the failures of this step and of those before it."""

    finished: dict[Cell, T] = field(default_factory=dict)
    failed: dict[Cell, FactoryError] = field(default_factory=dict)

    @classmethod
    def of(cls, cells: Iterable[Cell], step: Callable[[Cell], T], say: Say | None = None) -> Outcomes[T]:
        return Outcomes({cell: cell for cell in cells}).then(step, say)

    def then(self, step: Callable[[T], U], say: Say | None = None) -> Outcomes[U]:
        """Take the next step with everything that has not failed yet; report each failure as it happens."""
        after: Outcomes[U] = Outcomes(failed=dict(self.failed))
        for cell, result in self.finished.items():
            try:
                after.finished[cell] = step(result)
            except FactoryError as error:
                after.failed[cell] = error
                if say is not None:
                    say(f"{cell.full_target}: {error.what} {error.why}")
        return after

    def refuse_failures(self, doing: str) -> None:
        """Raise if any cell failed: the failure itself if there was only that cell, else one that names them all."""
        if not self.failed:
            return
        first = next(iter(self.failed.values()))
        total = len(self.failed) + len(self.finished)
        if total == 1:
            raise first
        raise BuildError(
            "targets-failed",
            f"{len(self.failed)} of {total} could not be {doing}.",
            where=", ".join(cell.full_target for cell in self.failed),
            why="; ".join(f"{cell}: {error.what} {error.why}" for cell, error in self.failed.items()),
            fix=first.fix,
        )


@dataclass(frozen=True)
class Staged:
    """An image that is in the registry, by digest and under its staging tag."""

    plan: Plan
    image: Image
    pushed: Pushed
    """What this process uploaded: nothing, if another one staged the image."""
    dossier: Dossier
    """What is attached to it; later steps add to it."""

    @classmethod
    def of(cls, repository: Repository, plan: Plan, image: Image, pushed: Pushed) -> Self:
        # Nothing is attached yet to an image whose configuration this process uploaded.
        is_new = pushed.outcomes.get(digest_of(image.config)) == "uploaded"
        return cls(plan, image, pushed, Dossier.begin(repository, image.digest, pushed.descriptor, is_empty=is_new))

    @property
    def digest(self) -> Digest:
        return self.image.digest

    @property
    def manifest(self) -> StoredManifest:
        return StoredManifest(self.digest, MANIFEST_TYPE, self.image.manifest)


def stage(run: PublishRun, plans: Outcomes[Plan]) -> Outcomes[Staged]:
    """Build the layers that the registry lacks, and upload the images."""
    project, repository = run.project, run.repository
    known_layers = KnownLayers(project.known_layers)
    blobs: dict[Sha256, Blob] = {}
    in_registry: dict[Sha256, Blob] = {}

    def elsewhere(layers: Sequence[Layer]) -> dict[Sha256, Blob]:
        """Return the recorded layers that the registry has; ask for each once."""
        asked = [(layer.key, known_layers.blob(layer.key)) for layer in layers if layer.key not in in_registry]
        recorded = [(key, blob) for key, blob in asked if blob is not None]
        with ThreadPoolExecutor(PARALLEL) as pool:
            presence = pool.map(repository.has_blob, [blob.digest for _, blob in recorded])
            in_registry.update(pair for pair, has in zip(recorded, presence, strict=True) if has)
        return {layer.key: in_registry[layer.key] for layer in layers if layer.key in in_registry}

    def push(plan: Plan) -> Staged:
        made = make_layers(BuildRun(project, [plan], run.watch, known_layers, elsewhere=elsewhere))
        blobs.update(made)
        image = make_image(plan, [made[layer.key] for layer in plan.layers])
        pushable = Pushable.of_image(image, project.store.blob)
        pushed = push_image(repository, pushable, tag=staging_tag(plan.key), watcher=run.pushing)
        return Staged.of(repository, plan, image, pushed)

    if plans.finished:
        repository.require_write()  # before hours of work that nobody could use
    with project.store.in_use():
        project.store.sweep()
        staged = plans.then(push, run.say)
    remember(project, known_layers, [image.plan for image in staged.finished.values()], blobs)
    return staged


def require_record(known_layers: KnownLayers, plan: Plan) -> Image:
    """Return the image that a plan must have; only an image whose layers are on record is published."""
    image = known_layers.image(plan)
    if image is None:
        target = plan.cell.full_target
        raise TrustError(
            "no-record",
            f"{known_layers.path.name} does not record every layer of {plan.target}.",
            where=known_layers.path,
            why="A tag in the registry does not say what was built, so nothing vouches for this image.",
            fix=f"Run `./inv build --target {target}` and commit {known_layers.path.name}.",
        )
    return image


def find_staged(run: PublishRun, plans: Outcomes[Plan]) -> Outcomes[Staged]:
    """Find images that were staged earlier, perhaps by another machine, by the digests that they must have.

    The staging tag is only compared: what it points at says nothing about what was built.
    """
    known_layers, repository = KnownLayers(run.project.known_layers), run.repository
    run.gate.snapshot  # noqa: B018 - read before the images are looked up: a prune since then ends the run

    def find(plan: Plan) -> Staged:
        tag = staging_tag(plan.key)
        where = str(repository.reference.tagged(tag))
        staged = repository.resolve(tag)
        if staged is None:
            raise RegistryError(
                "not-pushed",
                f"{plan.target} has not been pushed in its current form.",
                where=where,
                why="The registry has no such tag; the matrix, a lock or a mod may have changed since the last push.",
                fix=f"Run `./inv push --target {plan.cell.full_target}`, or `./inv publish`.",
            )
        image = require_record(known_layers, plan)
        if staged != image.digest:
            raise TrustError(
                "swapped-image",
                f"The registry has another image for {plan.target}.",
                where=where,
                why=f"It is {staged}; the record of layers gives {image.digest}.",
                fix="Nothing was signed or tagged. Push the image again. If another one returns, the owner of the "
                "registry has to find out who writes there, and revoke that access.",
            )
        manifest = repository.require_manifest(image.digest)
        return Staged.of(repository, plan, image, Pushed(image.digest, manifest.descriptor(), {}, 0))

    return plans.then(find)
