"""The record of built layers in locks/layers.toml: the digests of each key.

With it the digest of an image is known before a build, and a build with another result fails. Builds trust the recorded
`diff_id`; `invoke verify` and the smoke tests compute it again.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import tomli_w
from pydantic import BaseModel, ConfigDict

from imagefactory.errors.layers import NotReproducibleError
from imagefactory.errors.locks import LockFormatError, RecordNotWrittenError
from imagefactory.oci.blob import Blob
from imagefactory.oci.image import Image
from imagefactory.plan.image_documents import make_image
from imagefactory.plan.plan import Layer, Plan
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Digest, Sha256

HEADER = (
    "# The digests of every layer. Written by `invoke build`; do not edit. `invoke verify` checks them.\n"
)


class _KnownLayer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    key: Sha256
    name: str
    diff_id: Digest
    digest: Digest
    size: int
    unpacked: int


class _KnownWheel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    wheel: str
    sha256: Sha256
    record: Sha256
    """The hash of its RECORD, to verify single files without the whole wheel."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = 1
    layers: tuple[_KnownLayer, ...] = ()
    wheels: tuple[_KnownWheel, ...] = ()


class KnownLayers:
    """The layers in locks/layers.toml."""

    def __init__(self, path: Path) -> None:
        self.path = path
        file = _read(path)
        self._entries = {entry.key: entry for entry in file.layers}
        self._wheels = {entry.sha256: entry for entry in file.wheels}

    def blob(self, key: Sha256) -> Blob | None:
        """Return the recorded blob of a layer."""
        entry = self._entries.get(key)
        return Blob(**entry.model_dump(exclude={"key", "name"})) if entry else None

    def among(self, layers: Iterable[Layer]) -> dict[Sha256, Blob]:
        """Return the recorded blobs of some layers."""
        found = ((layer.key, self.blob(layer.key)) for layer in layers)
        return {key: blob for key, blob in found if blob is not None}

    def wheel_record(self, sha256: Sha256) -> Sha256 | None:
        """Return the sha256 of a wheel's RECORD."""
        entry = self._wheels.get(sha256)
        return entry.record if entry else None

    def image(self, plan: Plan) -> Image | None:
        """Return the image of a plan without building it; None if a layer is not recorded."""
        blobs = [self.blob(layer.key) for layer in plan.layers]
        known = [blob for blob in blobs if blob is not None]
        return make_image(plan, known) if len(known) == len(blobs) else None

    def confirm(self, layer: Layer, blob: Blob) -> None:
        """Raise NotReproducibleError if a layer differs from its record."""
        known = self.blob(layer.key)
        if known is not None and known != blob:
            raise NotReproducibleError(
                f"The layer {layer.kind} {layer.name} differs from its record.",
                where=f"{self.path.name}, key {layer.key}",
                why=f"Recorded: diff_id {known.diff_id}, digest {known.digest}; "
                f"built: diff_id {blob.diff_id}, digest {blob.digest}.",
                fix="If the factory's code changed the content of layers, raise LAYER_FORMAT; otherwise this is a bug.",
            )

    def refuse_unwritable(self, plans: Iterable[Plan]) -> None:
        """Raise RecordNotWrittenError if a build will have to record layers but cannot."""
        if all(layer.key in self._entries for plan in plans for layer in plan.layers):
            return
        # The file is replaced, so its folder must be writable too.
        if not all(os.access(_nearest(path), os.W_OK) for path in (self.path, self.path.parent)):
            raise RecordNotWrittenError(
                f"{self.path.name} cannot be written to.",
                where=self.path,
                why="Builds record new layers there; the file or its folder is read-only.",
                fix="Make the checkout writable. Nothing was built.",
            )

    def record(
        self,
        found: Mapping[Sha256, tuple[str, Blob]],
        still_needed: Iterable[Sha256],
        wheels: Mapping[Sha256, tuple[str, Sha256]] | None = None,
    ) -> bool:
        """Add new layers and wheels, and drop those that no plan needs; return whether the file changed.

        `wheels` maps the sha256 of wheels to their file name and the sha256 of their RECORD.
        """
        wheels = wheels or {}
        keep = set(still_needed) | set(found) | set(wheels)
        entries = {key: entry for key, entry in self._entries.items() if key in keep}
        for key, (name, blob) in found.items():
            entries.setdefault(key, _KnownLayer(key=key, name=name, **asdict(blob)))
        known = {sha256: entry for sha256, entry in self._wheels.items() if sha256 in keep}
        for sha256, (file, record) in wheels.items():
            known.setdefault(sha256, _KnownWheel(wheel=file, sha256=sha256, record=record))
        if entries == self._entries and known == self._wheels:
            return False
        self._entries, self._wheels = entries, known
        ordered = sorted(entries.values(), key=lambda entry: (entry.name, entry.key))
        by_name = sorted(known.values(), key=lambda entry: (entry.wheel, entry.sha256))
        data = _File(layers=tuple(ordered), wheels=tuple(by_name)).model_dump(mode="json")
        if not by_name:
            del data["wheels"]
        write_text(self.path, HEADER + tomli_w.dumps(data))
        return True


def _nearest(path: Path) -> Path:
    """Return a path, or its nearest parent that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _read(path: Path) -> _File:
    try:
        return _File.model_validate(tomllib.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return _File()
    except (OSError, ValueError, RecursionError) as error:  # not TOML, not UTF-8, or other content
        raise LockFormatError(
            f"{path.name} cannot be read.",
            where=path,
            why=str(error).splitlines()[0],
            fix="Restore it from git; a build adds what is missing.",
        ) from None
