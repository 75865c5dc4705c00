"""The records of built layers: the digests of each key in locks/layers.toml, and what the store knows of its own.

With it the digest of an image is known before a build, and a build with another result fails. Builds trust the recorded
`diff_id`; `./inv verify` and the smoke tests compute it again.
"""

import json
import tomllib
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import tomli_w
from pydantic import BaseModel, ConfigDict

from imagefactory.errors import LockError, TrustError
from imagefactory.oci.image import Blob, Image
from imagefactory.plan.plan import Layer, Plan, make_image
from imagefactory.project.locks.kernels import SlimmedWheel
from imagefactory.store.atomic import write_text, writing
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, Sha256

HEADER = "# The digests of every layer. Written by `./inv build`; do not edit. `./inv verify` checks them.\n"


class RecordedLayer(BaseModel):
    """The digests and sizes of a layer, under its key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: Sha256
    name: str
    diff_id: Digest
    digest: Digest
    size: int
    unpacked: int

    @property
    def blob(self) -> Blob:
        return Blob(**self.model_dump(exclude={"key", "name"}))


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = 1
    layers: tuple[RecordedLayer, ...] = ()


class KnownLayers:
    """The layers in locks/layers.toml."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries = {entry.key: entry for entry in _read(path).layers}

    def blob(self, key: Sha256) -> Blob | None:
        entry = self._entries.get(key)
        return entry.blob if entry else None

    @property
    def layers(self) -> Mapping[Sha256, RecordedLayer]:
        return self._entries

    def image(self, plan: Plan) -> Image | None:
        """Return the image of a plan without building it; None if a layer is not recorded."""
        blobs = [blob for layer in plan.layers if (blob := self.blob(layer.key))]
        return make_image(plan, blobs) if len(blobs) == len(plan.layers) else None

    def confirm(self, layer: Layer, blob: Blob) -> None:
        recorded = self.blob(layer.key)
        if recorded is not None and recorded != blob:
            raise TrustError(
                "not-reproducible",
                f"The layer {layer.kind} {layer.name} differs from its record.",
                where=f"{self.path.name}, key {layer.key}",
                why=f"Recorded: diff_id {recorded.diff_id}, digest {recorded.digest}; "
                f"built: diff_id {blob.diff_id}, digest {blob.digest}.",
                fix="If the factory's code changed the content of layers, raise LAYER_FORMAT; otherwise this is a bug.",
            )

    def add(self, layers: Mapping[Sha256, tuple[str, Blob]]) -> None:
        new = {key: RecordedLayer(key=key, name=name, **asdict(blob)) for key, (name, blob) in layers.items()}
        self._write(new | self._entries)  # what is on record stays

    def keep(self, needed: Container[Sha256]) -> int:
        before = len(self._entries)
        self._write({key: entry for key, entry in self._entries.items() if key in needed})
        return before - len(self._entries)

    def _write(self, entries: dict[Sha256, RecordedLayer]) -> None:
        if entries != self._entries:
            self._entries = entries
            layers = sorted(entries.values(), key=lambda entry: (entry.name, entry.key))
            document = _File(layers=tuple(layers)).model_dump(mode="json")
            write_text(self.path, HEADER + tomli_w.dumps(document))


def _read(path: Path) -> _File:
    try:
        return _File.model_validate(tomllib.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return _File()
    except (OSError, ValueError, RecursionError) as error:  # not TOML, not UTF-8, or other content
        raise LockError(
            "bad-lock",
            f"{path.name} cannot be read.",
            where=path,
            why=str(error).splitlines()[0],
            fix="Restore it from git; a build adds what is missing.",
        ) from None


def read_blob_record(key: Sha256, store: Store) -> Blob | None:
    """Return the blob of a layer, if it was built here and is still in the store."""
    try:
        blob = Blob(**json.loads(store.layer(key).read_text("utf-8")))
        # Its size is enough here: digests are checked when an image is laid out.
        whole = store.blob(blob.digest).stat().st_size == blob.size
    except (FileNotFoundError, TypeError, ValueError, RecursionError):  # missing or damaged
        return None
    return blob if whole else None


def mark_layers_used(blobs: Mapping[Sha256, Blob], store: Store) -> None:
    files = (
        (store.layer(key), store.owners(key), store.slimmed(key), store.blob(blob.digest))
        for key, blob in blobs.items()
    )
    store.mark_used(*chain.from_iterable(files))


def read_owners(key: Sha256, store: Store) -> dict[str, str]:
    path = store.owners(key)
    if not path.exists():
        return {}
    # Not splitlines(): a path may contain other line breaks.
    rows = (line.partition("\t") for line in path.read_bytes().decode().split("\n") if line)
    return {path: owner for owner, _, path in rows}


def read_slimmed(key: Sha256, store: Store) -> list[SlimmedWheel]:
    path = store.slimmed(key)
    if not path.exists():
        return []
    return [SlimmedWheel.model_validate(record) for record in json.loads(path.read_text("utf-8"))]


def write_slimmed(key: Sha256, records: Sequence[SlimmedWheel], store: Store) -> None:
    if records:
        with writing(store.slimmed(key)) as file:
            file.write(json.dumps([record.model_dump(mode="json") for record in records]).encode())


def write_record(key: Sha256, blob: Blob, owners: Mapping[str, str], store: Store) -> None:
    """Write the record of a layer, after its owners: a layer with a record counts as built."""
    with writing(store.owners(key)) as file:
        file.write("".join(f"{owner}\t{path}\n" for path, owner in sorted(owners.items())).encode())
    with writing(store.layer(key)) as file:
        file.write(json.dumps(asdict(blob), sort_keys=True).encode())
