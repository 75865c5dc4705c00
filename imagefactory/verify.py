"""Verifying an image: its blobs are what their names say, and a rebuild from the lock gives the same."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from imagefactory.build import Built, build
from imagefactory.cells import Cell
from imagefactory.compare import diff_layers
from imagefactory.content import Digest
from imagefactory.engines.watch import Watcher
from imagefactory.errors import VerificationError
from imagefactory.oci.layout import Layout
from imagefactory.project import Project
from imagefactory.store import Store

Say = Callable[[str], None]


def verify(project: Project, cell: Cell, watch: Watcher, say: Say, *, digest: str | None = None) -> Digest:
    """Rebuild a cell with an empty layer cache and compare with its image, or with a digest somebody names."""
    layout = Layout(project.build_folder(cell))
    if digest is None:
        digest = layout.manifest_digest()
    scratch = project.store.scratch()
    try:
        fresh = replace(project, store=_empty_layers(project.store, scratch))
        rebuilt = build(fresh, [cell], watch, say, locked_only=True, output=scratch / "image", record=False)[0]
        if layout.folder.exists():
            _compare_blobs(layout, rebuilt, project.store)
        if rebuilt.image.digest != digest:
            raise _not_the_same(str(cell), f"expected {digest}, the lock gives {rebuilt.image.digest}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return rebuilt.image.digest


def _empty_layers(store: Store, scratch: Path) -> Store:
    """Make a store that shares the downloads and nothing else."""
    store.root.joinpath("downloads").mkdir(parents=True, exist_ok=True)
    scratch.joinpath("store").mkdir()
    scratch.joinpath("store", "downloads").symlink_to(store.root / "downloads")
    return Store(scratch / "store")


def _compare_blobs(layout: Layout, rebuilt: Built, store: Store) -> None:
    """Check each blob against its own name, then against the rebuilt one; say where the first difference is."""
    names = [f"{layer.kind} {layer.name}" for layer in rebuilt.plan.layers]
    for name, digest, blob in zip(names, layout.layer_digests(), rebuilt.image.layers, strict=False):
        path = layout.blob(digest)
        actual = _digest_of(path)
        if actual == digest == blob.digest:
            continue
        expected = rebuilt.layout.blob(blob.digest)
        detail = "its bytes differ, but its content does not (another compression)"
        try:
            differences = diff_layers(path, expected, store, (actual, blob.digest))
        except Exception as error:  # noqa: BLE001 - a damaged layer may fail in any way, and that is the finding
            detail = f"it cannot be read: {error}".splitlines()[0]
        else:
            if differences:
                first = differences[0]
                detail = f"/{first.path}: {first.field} is {first.left}, a rebuild gives {first.right}"
        what = f"the blob {digest} has other bytes than its name says" if actual != digest else "a rebuild differs"
        raise _not_the_same(f"layer {name}", f"{what}; {detail}")


def _digest_of(path: Path) -> Digest:
    with path.open("rb") as file:
        return Digest(f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}")


def _not_the_same(where: str, why: str) -> VerificationError:
    return VerificationError(
        "The image is not what its lock says.",
        where=where,
        why=why,
        fix="Do not use it: remove it (`invoke clean --everything`), build again, and report it if it happens again.",
    )
