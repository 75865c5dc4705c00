"""Verifies an image: its blobs match their digests, and a rebuild from the lock gives the same bytes."""

from dataclasses import replace
from pathlib import Path

from imagefactory.assemble.assemble import BuildRun, Built, assemble
from imagefactory.assemble.images_here import refuse_stale
from imagefactory.assemble.layer_records import confirm
from imagefactory.assemble.watch import Watcher
from imagefactory.errors import InputError, TrustError
from imagefactory.oci.compare import diff_layers
from imagefactory.oci.layout import Layout
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, file_sha256

_OTHER_BYTES = "the blob {} has other bytes than its name says"


def verify(project: Project, cell: Cell, watch: Watcher, *, digest: str | None = None) -> Digest:
    """Rebuild a cell with an empty layer cache and compare the result with its image, or with a given digest.

    No layer counts as known, so that every input is hashed before it is used.
    """
    layout = Layout(project.build_folder(cell))
    expected = digest or layout.manifest_digest()
    plan = make_plan(project, cell)
    if digest is None:
        refuse_stale(layout, plan)
    with project.store.in_use(), project.store.scratch() as scratch:
        fresh = replace(project, store=_empty_layers(project.store, scratch))
        [rebuilt] = assemble(BuildRun(fresh, [plan], watch, output=scratch / "image"))
        if layout.folder.exists() and layout.manifest_digest() == expected:
            _compare(layout, rebuilt)
        if rebuilt.image.digest != expected:
            raise _not_the_same(str(cell), f"expected {expected}, the lock gives {rebuilt.image.digest}")
        blobs = {layer.key: blob for layer, blob in zip(rebuilt.plan.layers, rebuilt.image.layers, strict=True)}
        confirm(KnownLayers(project.known_layers), [rebuilt.plan], blobs, project.store)
    return rebuilt.image.digest


def _empty_layers(store: Store, scratch: Path) -> Store:
    """Make a store that shares the inputs of layers with another one, and nothing else."""
    scratch.joinpath("store").mkdir()
    for folder in (store.root / "downloads", store.root / "wheelhouse"):
        folder.mkdir(parents=True, exist_ok=True)
        scratch.joinpath("store", folder.name).symlink_to(folder)
    return Store(scratch / "store")


def _compare(layout: Layout, rebuilt: Built) -> None:
    """Check each blob against its digest, and each layer against the rebuilt one; report the first difference."""
    for name, digest in (("manifest", layout.manifest_digest()), ("configuration", layout.config_digest())):
        if _digest_of(layout.blob(digest)) != digest:
            raise _not_the_same(f"the {name} of {layout.folder.name}", _OTHER_BYTES.format(digest))
    built = zip(rebuilt.plan.layers, rebuilt.image.layers, strict=True)
    # Another number of layers means another manifest, which `verify` refuses.
    for digest, (layer, blob) in zip(layout.layer_digests(), built, strict=False):
        path = layout.blob(digest)
        actual = _digest_of(path)
        if actual == digest == blob.digest:
            continue
        what = _OTHER_BYTES.format(digest) if actual != digest else "a rebuild differs"
        detail = _first_difference(path, rebuilt.layout.blob(blob.digest)) if actual else "it is missing"
        raise _not_the_same(f"layer {layer.kind} {layer.name}", f"{what}; {detail}")


def _first_difference(path: Path, expected: Path) -> str:
    try:
        differences = diff_layers(path, expected)
    except InputError as error:
        return f"it cannot be read: {error.why}"
    if not differences:
        return "its bytes differ, but its content does not (another compression)"
    first = differences[0]
    return f"/{first.path}: {first.field} is {first.left}, a rebuild gives {first.right}"


def _digest_of(path: Path) -> Digest | None:
    return Digest(f"sha256:{file_sha256(path)}") if path.exists() else None


def _not_the_same(where: str, why: str) -> TrustError:
    return TrustError(
        "rebuild-differs",
        "The image is not what its lock says.",
        where=where,
        why=why,
        fix="Do not use it: remove it (`./inv clean --everything`), build again, and report it if it happens again.",
    )
