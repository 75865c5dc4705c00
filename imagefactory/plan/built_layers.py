"""Records of built layers in the store: their digests, and the owner of each path."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain

from imagefactory.oci.image import Blob
from imagefactory.project.locks.gpu_libraries import SlimmedWheel
from imagefactory.store.atomic import writing
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256


def read_blob_record(key: Sha256, store: Store) -> Blob | None:
    """Return the blob of a layer, if it was built here and is still in the store."""
    try:
        blob = Blob(**json.loads(store.layer(key).read_text("utf-8")))
        whole = store.blob(blob.digest).stat().st_size == blob.size
    except (FileNotFoundError, TypeError, ValueError, RecursionError):  # missing or damaged
        return None
    return blob if whole else None


def mark_layers_used(blobs: Mapping[Sha256, Blob], store: Store) -> None:
    """Mark layers as used, so that cleaning keeps them."""
    files = (
        (store.layer(key), store.owners(key), store.slimmed(key), store.blob(blob.digest))
        for key, blob in blobs.items()
    )
    store.mark_used(*chain.from_iterable(files))


def read_owners(key: Sha256, store: Store) -> dict[str, str]:
    """Return the owner of each path in a layer that was built here."""
    path = store.owners(key)
    if not path.exists():
        return {}
    # Not splitlines(): a path may contain other line breaks.
    rows = (line.partition("\t") for line in path.read_bytes().decode().split("\n") if line)
    return {path: owner for owner, _, path in rows}


def read_slimmed(key: Sha256, store: Store) -> list[SlimmedWheel]:
    """Return what was taken out of the wheels of a layer that was built here."""
    path = store.slimmed(key)
    if not path.exists():
        return []
    return [SlimmedWheel.model_validate(record) for record in json.loads(path.read_text("utf-8"))]


def write_slimmed(key: Sha256, records: Sequence[SlimmedWheel], store: Store) -> None:
    """Write down what was taken out of the wheels of a layer."""
    if records:
        with writing(store.slimmed(key)) as file:
            file.write(json.dumps([record.model_dump(mode="json") for record in records]).encode())


def write_record(key: Sha256, blob: Blob, owners: Mapping[str, str], store: Store) -> None:
    """Write the record of a layer, after its owners: a layer with a record counts as built."""
    with writing(store.owners(key)) as file:
        file.write("".join(f"{owner}\t{path}\n" for path, owner in sorted(owners.items())).encode())
    with writing(store.layer(key)) as file:
        file.write(json.dumps(asdict(blob), sort_keys=True).encode())
