"""Layers: every kind has its own settings, which determine its key."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter, ValidationError

from imagefactory.oci.format import LAYER_FORMAT
from imagefactory.plan.make import locked_plans
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
from tests.fixtures.small_factory import SmallFactory

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
LAYERS: list[tuple[Layer, str, str]] = [
    (
        BaseLayer.of("base", "base", INPUTS, BaseSettings(platform="linux/arm64", **PYTHON)),
        '{"platform":"linux/arm64","python":"3.11","venv":"opt/venv"}',
        "da631a7418240ddc477861974da8b60cab6ac3a615e68fefa6eb4478c41ee0e6",
    ),
    (
        WheelLayer.of("wheel", "one", INPUTS, WheelSettings(**PYTHON)),
        '{"python":"3.11","venv":"opt/venv"}',
        "9a9d3346066db5786572e5a6f200e97766eae9cb2a486ee74c6ed0de13f82ae6",
    ),
    (
        WheelLayer.of("pure-bundle", "yields and rehashed", INPUTS, YIELDING),
        '{"python":"3.11","venv":"opt/venv","without":{"a.whl":["a/b.py","a/c.py"]},"rehash":["a.whl"]}',
        "5ef275a74ef94377e3dc495dc138209a7f0397ee9dc50729cbb3d50f0b751eec",
    ),
    (
        WheelLayer.of("platform-bundle", "second name", INPUTS, RENAMED),
        '{"python":"3.11","venv":"opt/venv","second_name":{"name":"vllm","version":"1.0+cpu"}}',
        "8ebe89b386c08d87f9ceb9bb65341026a798df6c14a09dacbeaa9046be66c801",
    ),
    (
        ModLayer.of("mod", "mod", INPUTS, MODS),
        (
            '{"python":"3.11","venv":"opt/venv",'
            '"chain":[{"manifest":{"name":"a-first","variants":[]},"files":{"x.patch":"ü"}}],'
            '"wheels":{"vllm":"a.whl"},"without":{}}'
        ),
        "b700fd29ca7eaed6972a3808bc6e1c2b2f5206d3f143e7788676e0006d45a03c",
    ),
    (
        ServeLayer.of("serve", "serve", INPUTS, ServeSettings(files=FILES)),
        '{"files":{"images/a.py":"usr/share/a.py"}}',
        "1a3801b7131273336395b2673a0baf4f2f4bf581680a720a6ba3418b475d7c00",
    ),
    (
        ServeLayer.of("serve", "serve with a compiler", INPUTS, ServeSettings(files=FILES, toolkit=TOOLKIT)),
        '{"files":{"images/a.py":"usr/share/a.py"},"toolkit":{"python":"3.11","venv":"opt/venv"}}',
        "86d15320f1bf207ec051fe3619760cf3e4fccd891ff76e2ba6d8af1207a7b24f",
    ),
    (
        ModelLayer.of("model", "model", INPUTS, MODEL),
        '{"model":{"model":"m","drafters":[],"share":0.5,"none":null},"description":{"format":1,"settings":[]}}',
        "ef49d51eeec8e914c3c66ad9a0bdaf08284eb16492fdfee0c8ff27621e24244e",
    ),
    (
        ToolkitLayer.of("toolkit", "toolkit", INPUTS, TOOLKIT),
        '{"python":"3.11","venv":"opt/venv"}',
        "3e7c76179b1133c8c1c018fab433fa1961d6a3e63d9d28e82f5994c8946034d5",
    ),
]
"""Layers of every kind, with their settings in JSON and their keys. Another key means another image."""
ANY_LAYER: TypeAdapter[Layer] = TypeAdapter(Layer)

every_layer = pytest.mark.parametrize(
    ("layer", "settings", "key"), [pytest.param(*case, id=case[0].name) for case in LAYERS]
)


@every_layer
def test_settings_and_keys_are_stable(layer: Layer, settings: str, key: str) -> None:
    assert layer.settings.model_dump_json() == settings
    assert layer.key == key


@every_layer
def test_a_layer_survives_the_round_trip_through_json(layer: Layer, settings: str, key: str) -> None:
    text = layer.model_dump_json()
    assert list(json.loads(text)) == ["kind", "name", "key", "inputs", "settings", "download", "unpacked"]
    back = ANY_LAYER.validate_json(text)
    assert (type(back), back) == (type(layer), layer)
    assert (back.settings.model_dump_json(), back.key) == (settings, key)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"kind": "mod"}, id="settings of another kind"),
        pytest.param({"kind": "unheard-of"}, id="no such kind"),
        pytest.param({"settings": {"python": "3.11"}}, id="a setting is missing"),
        pytest.param({"settings": {**PYTHON, "more": 1}}, id="a setting too many"),
    ],
)
def test_settings_of_another_kind_are_refused(change: dict[str, object]) -> None:
    wheel, *_ = LAYERS[1]
    ANY_LAYER.validate_python(wheel.model_dump(mode="json"))
    with pytest.raises(ValidationError):
        ANY_LAYER.validate_python(wheel.model_dump(mode="json") | change)


def test_the_key_of_a_layer_can_be_computed_from_the_plan(small_factory: SmallFactory) -> None:
    for plan in locked_plans(small_factory.project):
        for shown in plan.model_dump(mode="json")["layers"]:
            inputs = [[item["name"], item["sha256"]] for item in shown["inputs"]]
            covered = {"kind": shown["kind"], "inputs": inputs, "settings": shown["settings"]}
            assert shown["key"] == checksum({"format": LAYER_FORMAT, **covered}), shown["name"]
