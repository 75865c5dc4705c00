"""Lists the files of layers that the factory writes itself: the serve program, links to the CUDA toolkit, models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from imagefactory.assemble.layers.tiny_model import tiny_model
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.plan.plan import ModelSettings, ServeLayer, ToolkitSettings
from imagefactory.plan.serve.description import settings_bytes
from imagefactory.plan.serve.image_paths import CACHES, CUDA_HOME, SETTINGS, SHARE
from imagefactory.store.digests import Sha256


def serve_entries(layer: ServeLayer, files: Mapping[Sha256, Path]) -> Iterable[Entry]:
    """List the entries of the layer; any user may write to the cache folder, since a container can run as anyone."""
    for item in layer.inputs:
        path = ImagePath(layer.settings.files[item.name])
        yield Entry(path, EntryKind.FILE, 0o644, Bytes(files[item.sha256].read_bytes()))
    yield Entry(ImagePath(CACHES.lstrip("/")), EntryKind.DIRECTORY, 0o1777)
    if layer.settings.toolkit is not None:
        yield from toolkit_links(layer.settings.toolkit)


_LIBRARIES = {
    "cublas": 13,
    "cublasLt": 13,
    "cudart": 13,
    "cufft": 12,
    "curand": 10,
    "cusolver": 12,
    "cusparse": 12,
    "nvJitLink": 13,
    "nvrtc": 13,
}
"""The libraries of CUDA 13 and their major versions."""


def toolkit_links(settings: ToolkitSettings) -> list[Entry]:
    """Return the links, sorted by path."""
    wheels = f"{settings.venv}/lib/python{settings.python}/site-packages/nvidia/cu13"
    links = {CUDA_HOME: f"/{wheels}", f"{wheels}/lib64": "lib"}
    links |= {f"{wheels}/lib/lib{name}.so": f"lib{name}.so.{major}" for name, major in _LIBRARIES.items()}
    return [
        Entry(ImagePath(path), EntryKind.SYMLINK, 0o777, target=target)
        for path, target in sorted(links.items())
    ]


MODEL = f"{SHARE}/model.json"
MODELS = "opt/models"


def model_entries(settings: ModelSettings) -> list[Entry]:
    """List the files of a model's layer."""
    text = json.dumps(settings.model, indent=2, sort_keys=True) + "\n"
    files = {MODEL: text.encode(), SETTINGS: settings_bytes(settings.description)}
    if settings.model.get("generated") == "tiny":
        files |= {f"{MODELS}/tiny/{name}": data for name, data in tiny_model().items()}
    return [
        Entry(ImagePath(path), EntryKind.FILE, 0o644, Bytes(data)) for path, data in sorted(files.items())
    ]
