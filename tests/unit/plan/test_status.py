"""The status of a plan before and after a build, and its changes since the last one."""

from pathlib import Path

import pytest

from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Input, ModLayer, ModLink, ModSettings, Plan
from imagefactory.plan.status import LAST_PLAN, diff_plans, last_plan, plan_status
from imagefactory.store.digests import Sha256
from tests.fixtures.small_factory import CELL, SmallFactory

NEW = Input(name="new.deb", sha256=Sha256("0" * 64))


@pytest.fixture
def plan(small_factory: SmallFactory) -> Plan:
    return make_plan(small_factory.project, CELL)


def changes(old: Plan, new: Plan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for change in diff_plans(old, new):
        found.setdefault(change.name.split()[0], []).append(change.what)
    return found


def replace(plan: Plan, position: int, **updates: object) -> Plan:
    layers = list(plan.layers)
    layers[position] = layers[position].model_copy(update={"key": Sha256("9" * 64), **updates})
    return plan.model_copy(update={"layers": tuple(layers)})


def test_changed_inputs_are_listed(plan: Plan) -> None:
    assert diff_plans(plan, plan) == []
    first, *rest = plan.layers[0].inputs
    other = Input(name=first.name, sha256=NEW.sha256)
    assert changes(plan, replace(plan, 0, inputs=(other, *rest))) == {"base": [f"input {first.name} changed"]}
    both = [f"input {first.name} removed", "input new.deb added"]
    assert changes(plan, replace(plan, 0, inputs=(*rest, NEW))) == {"base": sorted(both)}
    shuffled = replace(plan, 0, inputs=plan.layers[0].inputs[::-1])
    assert changes(plan, shuffled) == {"base": ["the order of its inputs or mods"]}


def test_a_changed_setting_is_listed_with_both_values(plan: Plan) -> None:
    changed = replace(plan, 0, settings=plan.layers[0].settings.model_copy(update={"python": "3.99"}))
    assert changes(plan, changed) == {"base": ['python "3.11" -> "3.99"']}
    long = plan.layers[0].settings.model_copy(update={"python": "3" * 100})
    assert changes(plan, replace(plan, 0, settings=long)) == {"base": ["python changed"]}


def with_mods(plan: Plan, wheel: str, **texts: str) -> Plan:
    """Add a layer with a chain of mods, each with a text."""
    chain = tuple(ModLink(manifest={"name": name}, files={"patch": text}) for name, text in texts.items())
    settings = ModSettings(python="3.11", venv="opt/venv", chain=chain, wheels={"vllm": wheel}, without={})
    layer = ModLayer.of("mod", "last", (), settings)
    return plan.model_copy(update={"layers": (*plan.layers, layer)})


@pytest.mark.parametrize(
    ("wheel", "mods", "why"),
    [
        ("a.whl", {"first": "1", "last": "2"}, "mods/last changed"),
        ("a.whl", {"last": "1"}, "mods/first removed"),
        ("a.whl", {"first": "1", "second": "1", "last": "1"}, "mods/second added"),
        ("b.whl", {"first": "1", "last": "1"}, 'wheels vllm "a.whl" -> "b.whl"'),
    ],
)
def test_a_changed_chain_of_mods_is_described_by_their_names(
    plan: Plan, wheel: str, mods: dict[str, str], why: str
) -> None:
    before = with_mods(plan, "a.whl", first="1", last="1")
    assert changes(before, with_mods(plan, wheel, **mods)) == {"mod": [why]}


def test_added_and_removed_layers_are_listed(plan: Plan) -> None:
    fewer = plan.model_copy(update={"layers": plan.layers[1:]})
    assert changes(plan, fewer) == {"base": ["removed"]}
    assert changes(fewer, plan) == {"base": ["new"]}


def test_a_bundle_is_recognised_by_its_kind(plan: Plan) -> None:
    position = next(n for n, layer in enumerate(plan.layers) if layer.kind == "pure-bundle")
    first, *rest = plan.layers[position].inputs
    changed = replace(plan, position, name=f"{len(rest)} wheels", inputs=tuple(rest))
    assert changes(plan, changed) == {"pure-bundle": [f"input {first.name} removed"]}


def test_the_last_plan_is_read_unless_it_is_missing_or_invalid(plan: Plan, tmp_path: Path) -> None:
    assert last_plan(tmp_path) is None
    (tmp_path / LAST_PLAN).write_text(plan.model_dump_json())
    assert last_plan(tmp_path) == plan
    (tmp_path / LAST_PLAN).write_text("{}")
    assert last_plan(tmp_path) is None


def test_sizes_and_image_are_known_after_a_build(small_factory: SmallFactory) -> None:
    status = plan_status(small_factory.project, make_plan(small_factory.project, CELL))
    assert {(blob, cached) for _, blob, cached in status.layers} == {(None, False)}
    assert status.image is None
    [built] = small_factory.build()
    status = plan_status(small_factory.project, built.plan)
    assert [layer.blob for layer in status.layers] == list(built.image.layers)
    assert all(layer.cached for layer in status.layers)
    assert status.image == built.image
