"""Checks the layers of a published image: that they exist and, on request, that every byte is right."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from imagefactory.environment.progress import Say
from imagefactory.errors.layers import DamagedFileError
from imagefactory.errors.registry import ContentMissingError
from imagefactory.errors.store import DigestMismatchError
from imagefactory.oci.compare import diff_layers
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest

_BLOCK = 16 * 1024 * 1024
_MISSING = "the registry does not have it"


def layer_problems(
    repository: Repository,
    layers: Sequence[Descriptor],
    names: Sequence[str],
    store: Store,
    say: Say,
    *,
    every_byte: bool,
) -> Iterator[str]:
    """Check every layer; `names` are their names. Downloads are not kept."""
    if len(names) != len(layers):
        names = [layer.digest for layer in layers]
    labels = [name.removeprefix("imagefactory ") for name in names]
    for label, layer in zip(labels, layers, strict=True):
        if every_byte:
            problem = _problem_of_bytes(repository, layer, label, store, say)
        else:
            problem = None if repository.has_blob(layer.digest) else _MISSING
        if problem:
            yield f"layer {label}: {problem}"


def _problem_of_bytes(
    repository: Repository, layer: Descriptor, label: str, store: Store, say: Say
) -> str | None:
    say(f"layer {label}: {layer.size / 1e6:,.1f} MB")
    with store.scratch() as scratch:
        try:
            repository.download(layer.digest, layer.size, scratch / "layer")
        except ContentMissingError:
            return _MISSING
        except DigestMismatchError as error:
            return f"{layer.digest} has other bytes: {error.why}{_where(repository, layer, store, scratch)}"
    return None


def _where(repository: Repository, layer: Descriptor, store: Store, scratch: Path) -> str:
    """Name the path that was changed in a layer, if the right layer is at hand to compare with."""
    right = store.blob(layer.digest)
    if not right.exists():
        return ""
    wrong = scratch / "other"
    with wrong.open("wb") as file:
        while block := repository.read(layer.digest, file.tell(), _BLOCK):
            file.write(block)
            if len(block) < _BLOCK:
                break
    try:
        # Under a digest of its own, or its listing would be cached as the right layer's.
        differences = diff_layers(wrong, right, store, (_name_of(wrong), layer.digest))
    except DamagedFileError as error:
        return f" It cannot be read: {error.why}"
    if not differences:
        return " Its files are the right ones, only packed differently."
    first = differences[0]
    return f" /{first.path}: {first.field} is {first.left}, should be {first.right}"


def _name_of(path: Path) -> Digest:
    with path.open("rb") as file:
        return Digest(f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}")
