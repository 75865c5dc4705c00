"""Layers: every kind has its own settings, which determine its key."""

import json

import pytest
from pydantic import TypeAdapter

from imagefactory.oci.format import LAYER_FORMAT
from imagefactory.plan.plan import (
    BaseLayer,
    BaseSettings,
    Environment,
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
    WheelLayer,
    WheelSettings,
)
from imagefactory.store.digests import Sha256, checksum

INPUTS = (Input(name="a", sha256=Sha256("a" * 64)),)
VENV = "opt/venv"
PYTHON = {"python": "3.11", "venv": VENV}
FILES = {"images/a.py": "usr/share/a.py"}
TOOLKIT = Environment(**PYTHON)
YIELDING = WheelSettings(**PYTHON, without={"a.whl": ("a/b.py", "a/c.py")}, rehash=("a.whl",))
RENAMED = WheelSettings(**PYTHON, second_name=SecondName(name="vllm", version="1.0+cpu"))
LINK = ModLink(manifest={"name": "a-first", "variants": []}, files={"x.patch": "ü"})
MODS = ModSettings(**PYTHON, chain=(LINK,), wheels={"vllm": "a.whl"}, without={})
MODEL = ModelSettings(
    model={"model": "m", "drafters": [], "share": 0.5, "none": None},
    description={"format": 1, "settings": []},
)
COMPILING = ServeSettings(files=FILES, toolkit=TOOLKIT)
LAYERS: list[tuple[Layer, str]] = [
    (
        BaseLayer.of("base", "base", INPUTS, BaseSettings(platform="linux/arm64", **PYTHON)),
        "da631a7418240ddc",
    ),
    (WheelLayer.of("wheel", "one", INPUTS, WheelSettings(**PYTHON)), "9a9d3346066db578"),
    (WheelLayer.of("pure-bundle", "yields and rehashed", INPUTS, YIELDING), "5ef275a74ef94377"),
    (WheelLayer.of("platform-bundle", "second name", INPUTS, RENAMED), "8ebe89b386c08d87"),
    (ModLayer.of("mod", "mod", INPUTS, MODS), "b700fd29ca7eaed6"),
    (ServeLayer.of("serve", "serve", INPUTS, ServeSettings(files=FILES)), "1a3801b713127333"),
    (ServeLayer.of("serve", "serve with a compiler", INPUTS, COMPILING), "86d15320f1bf207e"),
    (ModelLayer.of("model", "model", INPUTS, MODEL), "ef49d51eeec8e914"),
    (ToolkitLayer.of("toolkit", "toolkit", INPUTS, TOOLKIT), "3e7c76179b1133c8"),
]
"""Layers of every kind, and how their keys begin, which cover the settings. Another key means another image."""
ANY_LAYER: TypeAdapter[Layer] = TypeAdapter(Layer)


@pytest.mark.parametrize(("layer", "key"), [pytest.param(*case, id=case[0].name) for case in LAYERS])
def test_keys_are_stable_and_survive_the_round_trip_through_json(layer: Layer, key: str) -> None:
    text = layer.model_dump_json()
    assert list(json.loads(text)) == ["kind", "name", "key", "inputs", "settings", "download", "unpacked"]
    back = ANY_LAYER.validate_json(text)
    assert (type(back), back) == (type(layer), layer)
    inputs = [[item.name, item.sha256] for item in back.inputs]
    covered = {"kind": back.kind, "inputs": inputs, "settings": back.settings.model_dump(mode="json")}
    assert layer.key == checksum({"format": LAYER_FORMAT, **covered})
    assert layer.key.startswith(key)
