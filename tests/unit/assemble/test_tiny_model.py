"""The tiny model has fixed bytes and a tokenizer with a token for every byte."""

import json

from imagefactory.assemble.layers.own_layers import MODEL, model_entries, tiny_model
from imagefactory.oci.entry import Bytes, ImagePath
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import ModelLayer, ModelSettings
from imagefactory.project.cells import Cell
from imagefactory.store.digests import sha256_of
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory


def model_settings(factory: SmallFactory, cell: Cell) -> ModelSettings:
    *_, layer = make_plan(factory.project, cell).layers
    assert isinstance(layer, ModelLayer)
    return layer.settings


def test_bytes_are_the_golden_ones() -> None:
    assert {name: sha256_of(data)[:16] for name, data in tiny_model().items()} == GOLDEN


def test_model_layer_describes_the_model_and_has_a_generated_one(small_factory: SmallFactory) -> None:
    settings = model_settings(small_factory, SECOND)
    entries = {entry.path: entry.content for entry in model_entries(settings)}
    assert "opt/models" not in " ".join(entries)
    content = entries[ImagePath(MODEL)]
    assert isinstance(content, Bytes)
    assert json.loads(content.data) == settings.model
    paths = {entry.path for entry in model_entries(model_settings(small_factory, CELL))}
    assert {"opt/models/tiny/config.json", "opt/models/tiny/tokenizer.json", MODEL} <= paths


GOLDEN = {
    "config.json": "cce6622df99419e3",
    "generation_config.json": "2a0175dd8991efe2",
    "tokenizer.json": "9a7cd2677d7e4e6a",
    "tokenizer_config.json": "8a1c21a9172e515d",
}
