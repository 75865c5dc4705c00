"""All commands of the factory, as `invoke --list` shows them."""

from __future__ import annotations

import os

if os.name == "nt":
    raise SystemExit("Windows is not supported; WSL 2 works, as on any Linux.")

from pathlib import Path

from invoke.collection import Collection
from invoke.main import program as plain_invoke

from imagefactory.commands import (
    ci,
    ci_repository,
    images,
    kernels,
    matrix,
    mods,
    registry,
    repository,
    smoke,
    supply,
    wheels,
)
from imagefactory.commands.program import take_over


def collection(root: Path) -> Collection:
    """Return all commands, set up to act on one checkout."""
    take_over(plain_invoke)
    namespace = Collection(
        matrix.targets,
        matrix.lock,
        matrix.plan,
        matrix.render,
        images.build,
        images.load,
        images.run,
        images.export,
        images.verify,
        images.diff,
        images.explain,
        kernels.compile_,
        kernels.audit,
        smoke.smoke,
        supply.licences,
        supply.sbom,
        supply.attest,
        images.clean,
        registry.push,
        registry.promote,
        registry.publish,
        registry.rollback,
        registry.history,
        registry.catalog,
        registry.prune,
        repository.doctor,
        repository.schemas,
        repository.docs,
        repository.test,
    )
    namespace.add_collection(Collection("mods", mods.check, mods.new, mods.diff, mods.export))
    namespace.add_collection(Collection("wheels", wheels.list_, wheels.push, wheels.pull))
    namespace.add_collection(Collection("keys", supply.new))
    namespace.add_collection(
        Collection(
            "ci",
            ci.plan,
            ci.push,
            ci.smoke,
            ci.promote,
            ci.record,
            ci.summary,
            ci.status,
            ci.changes,
            ci.check_mods,
            ci.report_mods,
            ci_repository.take_locks,
            ci_repository.adopt,
            ci_repository.refresh,
            ci_repository.propose,
            ci_repository.release,
            ci.room,
        )
    )
    namespace.configure({"checkout": str(root)})
    return namespace
