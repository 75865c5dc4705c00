"""Lists and locates compiled wheels, and moves them between the wheelhouse and a registry, as OCI artifacts."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from packaging.utils import canonicalize_name

from imagefactory.errors import NO_REPOSITORY, LockError, RegistryError
from imagefactory.lock.wheelhouse.keep import (
    CompiledWheel,
    CompileInputs,
    KeptWheel,
    all_kept,
    find,
    keep,
    refuse_damaged,
)
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.artifacts import TITLE, Payload, upload_artifact
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import LockedSource, LockedWheel
from imagefactory.project.locks.indexed_files import configured_indexes, indexed_file
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project, locked_cells
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, Sha256, canonical_json, parse_json
from imagefactory.store.downloads import Wanted
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes, local_wheels

ARTIFACT_TYPE: Final = "application/vnd.imagefactory.wheel.v1"
MEDIA_TYPE: Final = "application/zip"
INPUTS: Final = "imagefactory.inputs"
KEY: Final = "imagefactory.key"
_PREFIX: Final = "wheel-"
_KEY_IN_TAG: Final = 16  # digits of the key; a tag has at most 128 characters (OCI distribution spec)


def shared_at(matrix: Matrix) -> str | None:
    """Return the repository that wheels are shared in; None while matrix.yaml only has a placeholder."""
    return None if matrix.has_no_registry else matrix.effective_registry


def tag_of(inputs: CompileInputs) -> str:
    """Return the tag of a wheel's artifact; tags cannot contain a plus sign."""
    version = inputs.version.replace("+", "_")
    return f"{_PREFIX}{canonicalize_name(inputs.name)}-{version}-{inputs.key[:_KEY_IN_TAG]}"


def push(repository: Repository, wheel: KeptWheel) -> Literal["pushed", "present"]:
    """Push a wheel unless the registry has it; a different wheel from the same inputs is never replaced."""
    refuse_damaged(wheel)
    tag = tag_of(wheel.inputs)
    remote = remote_wheel(repository, tag)
    if remote is not None:
        if remote.sha256 == wheel.sha256:
            return "present"
        raise _another(f"{repository.reference.name}:{tag}", remote, wheel)
    payload = Payload.file(wheel.path, MEDIA_TYPE, digest=Digest(f"sha256:{wheel.sha256}"))
    annotations = {
        TITLE: wheel.filename,
        "org.opencontainers.image.version": wheel.inputs.version,
        KEY: wheel.key,
        INPUTS: canonical_json(wheel.inputs.as_json()).decode(),
    }
    body = upload_artifact(repository, ARTIFACT_TYPE, [payload], annotations=annotations)
    # The manifest and its tag come last: whoever sees them finds all that they name.
    repository.put_manifest(body, MANIFEST_TYPE, tag)
    return "pushed"


def remote_wheels(repository: Repository, name: str = "") -> list[CompiledWheel]:
    """List the wheels in a registry, or those of one package; a missing repository has none."""
    prefix = f"{_PREFIX}{canonicalize_name(name)}-" if name else _PREFIX
    try:
        tags = [tag for tag in repository.tags() if tag.startswith(prefix)]
    except RegistryError as error:
        if error.name != NO_REPOSITORY:
            raise
        return []
    wheels = (remote_wheel(repository, tag) for tag in sorted(tags))
    return [wheel for wheel in wheels if wheel is not None]  # a tag may have been deleted since it was listed


def remote_wheel(repository: Repository, tag: str) -> CompiledWheel | None:
    manifest = repository.manifest(tag)
    if manifest is None:
        return None
    try:
        document = manifest.document()
        inputs = CompileInputs.from_json(parse_json(document["annotations"][INPUTS]))
        [layer] = document["layers"]
        filename, described = str(layer["annotations"][TITLE]), Descriptor.of(layer)
        if document.get("artifactType") != ARTIFACT_TYPE:
            raise ValueError("its artifact type is different")  # noqa: TRY301 - told like what it lacks
        if tag_of(inputs) != tag:
            raise ValueError("its inputs give another key")  # noqa: TRY301
        if "/" in filename or not filename.endswith(".whl"):
            raise ValueError("its file is not a wheel")  # noqa: TRY301
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RegistryError(
            "bad-wheel-artifact",
            f"{tag} is not a compiled wheel.",
            where=f"{repository.reference.name}:{tag}",
            why=f"{type(error).__name__}: {error}",
            fix="Do not use it. Delete it, then push the wheel again under its own name.",
        ) from None
    sha256 = Sha256(described.digest.removeprefix("sha256:"))
    return CompiledWheel(filename, sha256, described.size, inputs)


def pull(repository: Repository, remote: CompiledWheel, store: Store) -> KeptWheel:
    """Pull a wheel into the store, with the same checks as for one compiled locally."""
    with store.scratch() as scratch:
        file = scratch / remote.filename
        repository.download(Digest(f"sha256:{remote.sha256}"), remote.size, file)
        kept = keep(store, remote.inputs, file)
    if kept.sha256 != remote.sha256:
        raise _another(str(kept.path), remote, kept)
    return kept


def _another(where: str, remote: CompiledWheel, kept: KeptWheel) -> RegistryError:
    return RegistryError(
        "bad-wheel-artifact",
        f"The registry has a different {kept.filename} from the same inputs.",
        where=where,
        why=f"Compilers do not always produce the same bytes: there {remote.sha256[:16]}, here {kept.sha256[:16]}. "
        "A lock may refer to the one in the registry.",
        fix=f"Use that one: remove {kept.path.parent}; builds then take the registry's.",
    )


@dataclass(frozen=True)
class ListedWheel(CompiledWheel):
    """A compiled wheel, and where it is."""

    here: bool
    shared: bool | None  # None if the registry was not queried
    locked: bool  # whether a lock refers to it

    def as_json(self) -> dict[str, Any]:
        return {"key": self.key, **vars(self), "inputs": self.inputs.as_json()}


def listing(project: Project, *, remote: bool = False) -> list[ListedWheel]:
    kept = {str(wheel.key): wheel for wheel in all_kept(project.store)}
    shared: dict[str, CompiledWheel] = {}
    if remote:
        with Repository.open(project.matrix.require_registry()) as repository:
            shared = {wheel.key: wheel for wheel in remote_wheels(repository)}
    locked = _locked_keys(project)
    everything: dict[str, CompiledWheel] = {**shared, **kept}
    rows = [
        ListedWheel(
            *(wheel.filename, wheel.sha256, wheel.size, wheel.inputs),
            here=wheel.key in kept,
            shared=wheel.key in shared if remote else None,
            locked=wheel.key in locked,
        )
        for wheel in everything.values()
    ]
    return sorted(rows, key=lambda row: (row.inputs.name, row.inputs.version, row.key))


def push_all(project: Project) -> Iterator[tuple[str, str, str]]:
    """Push the wheels of this machine; yield the file, the outcome and the address of each."""
    wheels = list(all_kept(project.store))
    if not wheels:
        raise LockError(
            "wheel-not-kept",
            "There is no compiled wheel to push.",
            where=project.store.root / "wheelhouse",
            why="Nothing was compiled on this machine.",
            fix="`./inv wheels.list --remote` lists all wheels; `./inv compile` makes one.",
        )
    with Repository.open(project.matrix.require_registry()) as repository:
        for wheel in wheels:
            outcome = push(repository, wheel)
            yield wheel.filename, outcome, f"{repository.reference.name}:{tag_of(wheel.inputs)}"


def locate(
    project: Project, locked: LockedWheel | LockedSource, indexes: Callable[[], Indexes] = configured_indexes
) -> Wanted:
    """Describe a locked wheel or source archive for download; nothing is asked before the store lacks it.

    A compiled wheel is in the wheelhouse, here or in the registry; what was published is on an index.
    """
    if isinstance(locked, LockedWheel) and locked.compiled is not None:
        places = partial(_compiled_locations, project, locked)
        return Wanted(locked.file, locked.sha256, locked.size, places)
    return indexed_file(locked, indexes)


def _compiled_locations(project: Project, wheel: LockedWheel) -> list[str]:
    """List local files that may be a locked wheel; if there is none, pull it from the registry."""
    paths = _local_files(project, wheel)
    where = shared_at(project.matrix)
    if not paths and where is not None:
        with Repository.open(where) as repository:
            offers = [offer for offer in remote_wheels(repository, wheel.name) if offer.sha256 == wheel.sha256]
            paths = [str(pull(repository, offer, project.store).path) for offer in offers[:1]]
    if not paths:
        raise _compile_needed(project, wheel)
    return paths


def is_kept(project: Project, wheel: LockedWheel, shared: Iterable[CompiledWheel]) -> bool:
    """Whether a compiled wheel that a lock names is here, or among those of a registry; nothing is downloaded."""
    here = project.store.download(wheel.sha256).exists() or bool(_local_files(project, wheel))
    return here or any(offer.sha256 == wheel.sha256 for offer in shared)


def _local_files(project: Project, wheel: LockedWheel) -> list[str]:
    """List local files that may be a locked wheel.

    The lock's sha256 decides. The same inputs may compile to different bytes on another machine, so the wheel that the
    wheelhouse has under a key is only a candidate.
    """
    kept = find(project.store, str(wheel.compiled))
    if kept is not None and kept.sha256 == wheel.sha256:
        return [str(kept.path)]
    return [str(path) for path in local_wheels(IndexConfig.from_environment()) if path.name == wheel.file]


def compile_command(cell: Cell, name: str) -> str:
    what = "flashinfer" if name.startswith("flashinfer") else name
    return f"./inv compile --vllm {cell.version} --arch {cell.arch} --what {what}"


def _compile_needed(project: Project, wheel: LockedWheel) -> LockError:
    cell = next((cell for cell in locked_cells(project) if wheel in project.wheel_lock(cell).wheels), None)
    where = shared_at(project.matrix)
    command, target = (compile_command(cell, wheel.name), f" --target {cell}") if cell else ("./inv compile", "")
    return LockError(
        "compile-needed",
        f"{f'{cell.version} for {cell.arch}' if cell else 'The image'} waits for the compile of {wheel.name}.",
        where=project.wheel_lock_path(cell) if cell else wheel.file,
        why=f"Searched: the wheelhouse {project.store.root / 'wheelhouse'}, folders in PIP_FIND_LINKS"
        f"{f', {where}' if where else ''}. None has {wheel.file} with the sha256 {wheel.sha256[:16]}.",
        fix=f"Name the registry that has it (FACTORY_REGISTRY). Or compile it: `{command}`, `./inv wheels.push`, then "
        f"`./inv lock{target}`, which locks the new file.",
    )


def _locked_keys(project: Project) -> set[str]:
    return {
        wheel.compiled
        for cell in locked_cells(project)
        for wheel in project.wheel_lock(cell).wheels
        if wheel.compiled is not None
    }
