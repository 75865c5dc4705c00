"""Finds locked files in the registry, where `wheels.archive` has put them for the day on which an index loses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from imagefactory.errors.registry import RegistryError
from imagefactory.matrix.matrix import Matrix
from imagefactory.oci.registry.repository import Repository
from imagefactory.resolve.wheelhouse.remote import shared_at
from imagefactory.store.digests import Digest, Sha256


def from_archive(matrix: Matrix, sha256: Sha256, size: int) -> Callable[[Path], str] | None:
    """Return a function that takes a file from the registry, or tells why it cannot; None without a registry.

    A registry finds content by its digest, so that it does not matter for which target the file was archived.
    """
    where = shared_at(matrix)
    if where is None:
        return None

    def take(path: Path) -> str:
        try:
            with Repository.open(where) as repository:
                repository.download(Digest(f"sha256:{sha256}"), size, path)
        except RegistryError as error:
            return f"{where}: {error.what}"
        return ""

    return take
