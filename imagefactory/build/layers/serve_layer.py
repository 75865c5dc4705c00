"""The serve layer: the program that starts vLLM, and the modules that apply mods at start-up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.plan.serve.image_paths import CACHES
from imagefactory.store.digests import Sha256


def serve_entries(
    places: Mapping[str, str], inputs: Iterable[tuple[str, Sha256]], files: Mapping[Sha256, Path]
) -> Iterable[Entry]:
    """List the entries of the layer; the caches' folder is for whoever the container runs as."""
    for name, sha256 in inputs:
        yield Entry(ImagePath(places[name]), EntryKind.FILE, 0o644, Bytes(files[sha256].read_bytes()))
    yield Entry(ImagePath(CACHES.lstrip("/")), EntryKind.DIRECTORY, 0o1777)
