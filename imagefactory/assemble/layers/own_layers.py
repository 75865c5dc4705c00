"""Lists the files of layers that the factory writes itself: the serve program, links to the CUDA toolkit, models."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.plan.plan import Environment, ModelSettings, ServeLayer
from imagefactory.plan.serve.description import settings_bytes
from imagefactory.plan.serve.image_paths import CACHES, CUDA_HOME, SETTINGS, SHARE
from imagefactory.store.digests import Sha256


def serve_entries(layer: ServeLayer, files: Mapping[Sha256, Path]) -> Iterable[Entry]:
    """List the entries of the layer; any user may write to the cache folder, since a container can run as anyone."""
    for file in layer.inputs:
        path = ImagePath(layer.settings.files[file.name])
        mode = 0o755 if path.endswith(".sh") else 0o644
        yield Entry(path, EntryKind.FILE, mode, Bytes(files[file.sha256].read_bytes()))
    yield Entry(ImagePath(CACHES.lstrip("/")), EntryKind.DIRECTORY, 0o1777)
    if layer.settings.toolkit is not None:
        yield from toolkit_links(layer.settings.toolkit)
    yield from _links(layer.settings.links)


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


def toolkit_links(environment: Environment) -> list[Entry]:
    wheels = f"{environment.site}/nvidia/cu13"
    links = {CUDA_HOME: f"/{wheels}", f"{wheels}/lib64": "lib"}
    links |= {f"{wheels}/lib/lib{name}.so": f"lib{name}.so.{major}" for name, major in _LIBRARIES.items()}
    return _links(links)


def _links(targets: Mapping[str, str]) -> list[Entry]:
    return [Entry(ImagePath(path), EntryKind.SYMLINK, 0o777, target=target) for path, target in sorted(targets.items())]


MODEL = f"{SHARE}/model.json"
MODELS = "opt/models"


def model_entries(settings: ModelSettings) -> list[Entry]:
    text = json.dumps(settings.model, indent=2, sort_keys=True) + "\n"
    files = {MODEL: text.encode(), SETTINGS: settings_bytes(settings.description)}
    if settings.model.get("generated") == "tiny":
        files |= {f"{MODELS}/tiny/{name}": data for name, data in tiny_model().items()}
    return [Entry(ImagePath(path), EntryKind.FILE, 0o644, Bytes(data)) for path, data in sorted(files.items())]


TINY: Final = Path(__file__).with_name("tiny_model")


def tiny_model() -> dict[str, bytes]:
    """Return the files of a model small enough for any machine: two layers, a tokenizer of single bytes, no weights.

    vLLM makes random weights (`--load-format dummy`), so the output is noise; what matters is that a real server
    produces it.
    """
    return {path.name: path.read_bytes() for path in sorted(TINY.iterdir())}
