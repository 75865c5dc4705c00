"""The small trained model: on any machine it shows what the comparison of answers takes for a change."""

import json
from pathlib import Path
from typing import Final

from imagefactory.assemble.layers.own_layers import tiny_model
from imagefactory.project.data import DATA
from imagefactory.store.atomic import writing
from imagefactory.store.digests import parse_json

NAME: Final = "trained-tiny"
SETTINGS: Final = {"LOAD_FORMAT": "auto", "MAX_MODEL_LEN": "512"}
"""What the tiny image needs to serve it: its own model has random weights."""


def write_example(root: Path, folder: Path) -> None:
    """Write the model's files: the tiny model's, with biases, and the weights that tools/train_tiny.py trained."""
    files = tiny_model()
    config = parse_json(files["config.json"]) | {"attention_bias": True}
    files["config.json"] = json.dumps(config).encode()
    files["model.safetensors"] = (root / DATA / "trained_model" / "model.safetensors").read_bytes()
    for name, data in files.items():
        with writing(folder / name) as file:
            file.write(data)
