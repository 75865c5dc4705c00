"""The factory's commands: each parses, calls the library and prints. `invoke --list` shows them all."""

from __future__ import annotations

from invoke.collection import Collection

from tasks import images, kernels, matrix, mods, repository, supply, wheels

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
    supply.licences,
    supply.sbom,
    supply.attest,
    images.clean,
    repository.doctor,
    repository.schemas,
    repository.docs,
    repository.test,
)
namespace.add_collection(Collection("mods", mods.check, mods.new, mods.diff, mods.export))
namespace.add_collection(Collection("wheels", wheels.list_, wheels.push, wheels.pull))
namespace.add_collection(Collection("keys", supply.new))
