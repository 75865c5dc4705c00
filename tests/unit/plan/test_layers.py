"""Layers: every kind has its own settings, which determine its key."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter

from imagefactory.oci.format import LAYER_FORMAT
from imagefactory.plan.plan import (
    BaseLayer,
    BaseSettings,
    Input,
    Layer,
    ModelLayer,
    ModelSettings,
    ModLayer,
    ModLink,
    ModSettings,
    SecondName,
    ServeLayer,
    ServeSettings,
    ToolkitLayer,
    ToolkitSettings,
    WheelLayer,
    WheelSettings,
)
from imagefactory.store.digests import Sha256, checksum

INPUTS = (Input(name="a", sha256=Sha256("a" * 64)),)
VENV = "opt/venv"
PYTHON = {"python": "3.11", "venv": VENV}
FILES = {"images/a.py": "usr/share/a.py"}
TOOLKIT = ToolkitSettings(**PYTHON)
YIELDING = WheelSettings(**PYTHON, without={"a.whl": ("a/b.py", "a/c.py")}, rehash=("a.whl",))
RENAMED = WheelSettings(**PYTHON, second_name=SecondName(name="vllm", version="1.0+cpu"))
LINK = ModLink(manifest={"name": "a-first", "variants": []}, files={"x.patch": "ü"})
MODS = ModSettings(**PYTHON, chain=(LINK,), wheels={"vllm": "a.whl"}, without={})
MODEL = ModelSettings(
    model={"model": "m", "drafters": [], "share": 0.5, "none": None},
    description={"format": 1, "settings": []},
)
LAYERS: list[tuple[Layer, str]] = [
    (
        BaseLayer.of("base", "base", INPUTS, BaseSettings(platform="linux/arm64", **PYTHON)),
        "da631a7418240ddc477861974da8b60cab6ac3a615e68fefa6eb4478c41ee0e6",
    ),
    (
        WheelLayer.of("wheel", "one", INPUTS, WheelSettings(**PYTHON)),
        "9a9d3346066db5786572e5a6f200e97766eae9cb2a486ee74c6ed0de13f82ae6",
    ),
    (
        WheelLayer.of("pure-bundle", "yields and rehashed", INPUTS, YIELDING),
        "5ef275a74ef94377e3dc495dc138209a7f0397ee9dc50729cbb3d50f0b751eec",
    ),
    (
        WheelLayer.of("platform-bundle", "second name", INPUTS, RENAMED),
        "8ebe89b386c08d87f9ceb9bb65341026a798df6c14a09dacbeaa9046be66c801",
    ),
    (
        ModLayer.of("mod", "mod", INPUTS, MODS),
        "b700fd29ca7eaed6972a3808bc6e1c2b2f5206d3f143e7788676e0006d45a03c",
    ),
    (
        ServeLayer.of("serve", "serve", INPUTS, ServeSettings(files=FILES)),
        "1a3801b7131273336395b2673a0baf4f2f4bf581680a720a6ba3418b475d7c00",
    ),
    (
        ServeLayer.of("serve", "serve with a compiler", INPUTS, ServeSettings(files=FILES, toolkit=TOOLKIT)),
        "86d15320f1bf207ec051fe3619760cf3e4fccd891ff76e2ba6d8af1207a7b24f",
    ),
    (
        ModelLayer.of("model", "model", INPUTS, MODEL),
        "ef49d51eeec8e914c3c66ad9a0bdaf08284eb16492fdfee0c8ff27621e24244e",
    ),
    (
        ToolkitLayer.of("toolkit", "toolkit", INPUTS, TOOLKIT),
        "3e7c76179b1133c8c1c018fab433fa1961d6a3e63d9d28e82f5994c8946034d5",
    ),
]
"""Layers of every kind, with their keys, which cover the settings. Another key means another image."""
ANY_LAYER: TypeAdapter[Layer] = TypeAdapter(Layer)


@pytest.mark.parametrize(("layer", "key"), [pytest.param(*case, id=case[0].name) for case in LAYERS])
def test_keys_are_stable_and_survive_the_round_trip_through_json(layer: Layer, key: str) -> None:
    text = layer.model_dump_json()
    assert list(json.loads(text)) == ["kind", "name", "key", "inputs", "settings", "download", "unpacked"]
    back = ANY_LAYER.validate_json(text)
    assert (type(back), back) == (type(layer), layer)
    inputs = [[item.name, item.sha256] for item in back.inputs]
    covered = {"kind": back.kind, "inputs": inputs, "settings": back.settings.model_dump(mode="json")}
    assert layer.key == key == checksum({"format": LAYER_FORMAT, **covered})
