"""Lists the files of model layers: the description of the model, and the tiny model itself."""

from __future__ import annotations

import json

from imagefactory.build.layers.tiny_model import tiny_model
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.plan.plan import ModelSettings
from imagefactory.plan.serve.description import settings_bytes
from imagefactory.plan.serve.image_paths import SETTINGS, SHARE

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
