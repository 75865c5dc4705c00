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
        "c2ba90fc3640b69ee158201dec5daf32bdbc93228db46d05260726a4be3baee5",
    ),
    (
        WheelLayer.of("wheel", "one", INPUTS, WheelSettings(**PYTHON)),
        '{"python":"3.11","venv":"opt/venv"}',
        "cd6a528e29c5943c85e4591628eafb821f915fa12c42e5fe0cd42277b7793884",
    ),
    (
        WheelLayer.of("pure-bundle", "yields and rehashed", INPUTS, YIELDING),
        '{"python":"3.11","venv":"opt/venv","without":{"a.whl":["a/b.py","a/c.py"]},"rehash":["a.whl"]}',
        "72af3600c0b7c2cd9e31378740a97d7c88d898c6d6f77615da0ff69d33508120",
    ),
    (
        WheelLayer.of("platform-bundle", "second name", INPUTS, RENAMED),
        '{"python":"3.11","venv":"opt/venv","second_name":{"name":"vllm","version":"1.0+cpu"}}',
        "7ba6809f9ea9863425e6dd6ef52d20476cc2c068c380d7653efd329e6f4fcf82",
    ),
    (
        ModLayer.of("mod", "mod", INPUTS, MODS),
        (
            '{"python":"3.11","venv":"opt/venv",'
            '"chain":[{"manifest":{"name":"a-first","variants":[]},"files":{"x.patch":"ü"}}],'
            '"wheels":{"vllm":"a.whl"},"without":{}}'
        ),
        "20d5ed08f5444458ea665bf310e83084f74f5d53e5774852a8dd8afd7dfaf246",
    ),
    (
        ServeLayer.of("serve", "serve", INPUTS, ServeSettings(files=FILES)),
        '{"files":{"images/a.py":"usr/share/a.py"}}',
        "8dabaee4eb49c8c5aab92bc4a755253d73f193be3352a36e9168dd972d547b10",
    ),
    (
        ServeLayer.of("serve", "serve with a compiler", INPUTS, ServeSettings(files=FILES, toolkit=TOOLKIT)),
        '{"files":{"images/a.py":"usr/share/a.py"},"toolkit":{"python":"3.11","venv":"opt/venv"}}',
        "e9095797fcc6c509fea5e2b78e32fc98ca09fd28ad93ddf41dd856e06ce809f9",
    ),
    (
        ModelLayer.of("model", "model", INPUTS, MODEL),
        '{"model":{"model":"m","drafters":[],"share":0.5,"none":null},"description":{"format":1,"settings":[]}}',
        "09c59997041a23f8f547499537d699c995959bd4279a5eac1d122fbfd2f4fa1f",
    ),
    (
        ToolkitLayer.of("toolkit", "toolkit", INPUTS, TOOLKIT),
        '{"python":"3.11","venv":"opt/venv"}',
        "6d04e163f7c4c77fcda1b0c19201cb79abf7d0116a30a6f11e3332508aca5eba",
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
