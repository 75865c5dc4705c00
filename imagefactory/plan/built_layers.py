"""What is remembered of a layer once it is built: its digests, and which package owns each path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from imagefactory.oci.blob import Blob
from imagefactory.store.atomic import writing
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256


def read_blob_record(key: Sha256, store: Store) -> Blob | None:
    """Recall what a layer came out as, if it was built here and its blob is still there."""
    try:
        blob = Blob(**json.loads(store.layer(key).read_text("utf-8")))
        whole = store.blob(blob.digest).stat().st_size == blob.size
    except (
        FileNotFoundError,
        TypeError,
        ValueError,
        RecursionError,
    ):  # not there, or damaged: it can be built again
        return None
    return blob if whole else None


def mark_layer_used(key: Sha256, blob: Blob, store: Store) -> None:
    """Keep a layer that a build made use of from being cleaned away for its age."""
    store.mark_used(store.layer(key), store.owners(key), store.blob(blob.digest))


def read_owners(key: Sha256, store: Store) -> dict[str, str]:
    """Recall which package owns each path of a layer that was built here."""
    path = store.owners(key)
    if not path.exists():
        return {}
    # Not splitlines(): a path may hold characters that Python takes for the end of a line.
    rows = (line.partition("\t") for line in path.read_bytes().decode().split("\n") if line)
    return {path: owner for owner, _, path in rows}


def write_record(key: Sha256, blob: Blob, owners: Mapping[str, str], store: Store) -> None:
    """Write who owns what first: a layer counts as built only once its record is there."""
    with writing(store.owners(key)) as file:
        file.write("".join(f"{owner}\t{path}\n" for path, owner in sorted(owners.items())).encode())
    with writing(store.layer(key)) as file:
        file.write(json.dumps(asdict(blob), sort_keys=True).encode())
