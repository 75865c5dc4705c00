"""Pushes compiled wheels to a registry, and pulls them, as OCI artifacts that record their inputs."""

from __future__ import annotations

from typing import Any, Final, Literal

from packaging.utils import canonicalize_name

from imagefactory.errors import RegistryError
from imagefactory.lock.wheelhouse.keep import CompiledWheel, CompileInputs, KeptWheel, keep, refuse_damaged
from imagefactory.oci.registry.artifacts import TITLE, Payload, push_artifact
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.matrix import Matrix
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, Sha256, canonical_json, parse_json

ARTIFACT_TYPE: Final = "application/vnd.imagefactory.wheel.v1"
MEDIA_TYPE: Final = "application/zip"
INPUTS: Final = "imagefactory.inputs"
KEY: Final = "imagefactory.key"
_PREFIX: Final = "wheel-"
_KEY_IN_TAG: Final = 16


class RemoteWheel(CompiledWheel):
    """A compiled wheel in a registry."""

    @property
    def tag(self) -> str:
        """The tag of its artifact."""
        return tag_of(self.inputs)


def shared_at(matrix: Matrix) -> str | None:
    """Return the repository that wheels are shared in; None while matrix.yaml only has a placeholder."""
    registry = matrix.effective_registry
    return None if "OWNER" in registry else registry


def tag_of(inputs: CompileInputs) -> str:
    """Return the tag of a wheel's artifact; tags cannot contain a plus sign."""
    version = inputs.version.replace("+", "_")
    return f"{_PREFIX}{canonicalize_name(inputs.name)}-{version}-{inputs.key[:_KEY_IN_TAG]}"


def push(repository: Repository, wheel: KeptWheel) -> Literal["pushed", "present"]:
    """Push a wheel unless the registry has it; a different wheel from the same inputs is never replaced."""
    refuse_damaged(wheel)
    tag = tag_of(wheel.inputs)
    there = remote_wheel(repository, tag)
    if there is not None:
        if there.sha256 == wheel.sha256:
            return "present"
        raise RegistryError(
            "bad-wheel-artifact",
            f"The registry has a different {wheel.filename} from the same inputs.",
            where=f"{repository.reference.name}:{tag}",
            why=f"Compilers do not always produce the same bytes: there {there.sha256[:16]}, here {wheel.sha256[:16]}. "
            "A lock may refer to the one in the registry.",
            fix=f"Use that one: remove {wheel.path.parent} and run `./inv wheels.pull --key {wheel.key[:16]}`.",
        )
    payload = Payload.file(wheel.path, MEDIA_TYPE, digest=Digest(f"sha256:{wheel.sha256}"))
    annotations = {
        TITLE: wheel.filename,
        "org.opencontainers.image.version": wheel.inputs.version,
        KEY: wheel.key,
        INPUTS: canonical_json(wheel.inputs.as_json()).decode(),
    }
    push_artifact(repository, ARTIFACT_TYPE, [payload], annotations=annotations, tag=tag)
    return "pushed"


def remote_wheels(repository: Repository, name: str = "") -> list[RemoteWheel]:
    """List the wheels in a registry, or those of one package; a missing repository has none."""
    begin = f"{_PREFIX}{canonicalize_name(name)}-" if name else _PREFIX
    try:
        tags = [tag for tag in repository.tags() if tag.startswith(begin)]
    except RegistryError as error:
        if error.name != "no-repository":
            raise
        return []
    found = (remote_wheel(repository, tag) for tag in sorted(tags))
    return [wheel for wheel in found if wheel is not None]  # a tag may have been deleted since it was listed


def remote_wheel(repository: Repository, tag: str) -> RemoteWheel | None:
    """Return the wheel that a registry has under a tag, if any."""
    manifest = repository.manifest(tag)
    if manifest is None:
        return None
    try:
        return _read(tag, manifest.document())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RegistryError(
            "bad-wheel-artifact",
            f"{tag} is not a compiled wheel.",
            where=f"{repository.reference.name}:{tag}",
            why=f"{type(error).__name__}: {error}",
            fix="Do not use it. Delete it, then push the wheel again under its own name.",
        ) from None


def pull(repository: Repository, remote: RemoteWheel, store: Store) -> KeptWheel:
    """Pull a wheel into the store, with the same checks as for one compiled locally."""
    with store.scratch() as scratch:
        file = scratch / remote.filename
        repository.download(Digest(f"sha256:{remote.sha256}"), remote.size, file)
        kept = keep(store, remote.inputs, file)
    if kept.sha256 != remote.sha256:
        raise RegistryError(
            "bad-wheel-artifact",
            f"The wheelhouse has a different {remote.filename} from the same inputs.",
            where=kept.path,
            why=f"The registry's is {remote.sha256[:16]}, the one here {kept.sha256[:16]}.",
            fix=f"To use the registry's wheel, remove {kept.path.parent} first.",
        )
    return kept


def _read(tag: str, document: dict[str, Any]) -> RemoteWheel:
    """Parse the manifest of an artifact; raise ValueError if it contradicts itself."""
    inputs = CompileInputs.from_json(parse_json(document["annotations"][INPUTS]))
    [layer] = document["layers"]
    filename = str(layer["annotations"]["org.opencontainers.image.title"])
    if document.get("artifactType") != ARTIFACT_TYPE:
        raise ValueError("its artifact type is different")
    if tag_of(inputs) != tag:
        raise ValueError("its inputs give another key")
    if "/" in filename or not filename.endswith(".whl"):
        raise ValueError("its file is not a wheel")
    described = Descriptor.of(layer)
    return RemoteWheel(filename, Sha256(described.digest.removeprefix("sha256:")), described.size, inputs)
