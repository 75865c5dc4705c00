"""Lists the entries of the serve layer: the program that starts the server, and the modules that apply mods then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from imagefactory.build.layers.cuda_toolkit import toolkit_links
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.plan.plan import ServeLayer
from imagefactory.plan.serve.image_paths import CACHES
from imagefactory.store.digests import Sha256


def serve_entries(layer: ServeLayer, files: Mapping[Sha256, Path]) -> Iterable[Entry]:
    """List the entries of the layer; any user may write to the cache folder, since a container can run as anyone."""
    for item in layer.inputs:
        path = ImagePath(layer.settings.files[item.name])
        yield Entry(path, EntryKind.FILE, 0o644, Bytes(files[item.sha256].read_bytes()))
    yield Entry(ImagePath(CACHES.lstrip("/")), EntryKind.DIRECTORY, 0o1777)
    if layer.settings.toolkit is not None:
        yield from toolkit_links(layer.settings.toolkit)
