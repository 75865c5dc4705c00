"""What a plan means here: what is shared with others, and which input changed since the last build."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.plan.changes import LAST_PLAN, diff_plans, is_cached, last_plan, shared_download
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Input, Layer, ModLayer, ModLink, ModSettings, Plan
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256
from tests.fixtures.checkouts import REPOSITORY, Checkout

GEMMA = Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64")
PLAN = make_plan(Project(REPOSITORY), GEMMA)


def changes(old: Plan, new: Plan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for change in diff_plans(old, new):
        found.setdefault(change.name.split()[0], []).append(change.what)
    return found


def replace(plan: Plan, position: int, **updates: object) -> Plan:
    layers = list(plan.layers)
    layers[position] = layers[position].model_copy(update={"key": Sha256("9" * 64), **updates})
    return plan.model_copy(update={"layers": tuple(layers)})


def base(plan: Plan) -> Layer:
    return plan.layers[0]


def test_the_same_plan_has_no_changes() -> None:
    assert diff_plans(PLAN, PLAN) == []


def test_a_changed_input_is_named() -> None:
    first, *rest = base(PLAN).inputs
    other = Input(name=first.name, sha256=Sha256("0" * 64))
    assert changes(PLAN, replace(PLAN, 0, inputs=(other, *rest))) == {
        "base": [f"input changed: {first.name}"]
    }


def test_added_and_removed_inputs_are_named() -> None:
    first, *rest = base(PLAN).inputs
    new = Input(name="new.deb", sha256=Sha256("0" * 64))
    assert changes(PLAN, replace(PLAN, 0, inputs=(*rest, new))) == {
        "base": [f"input removed: {first.name}", "input added: new.deb"]
    }


def test_inputs_in_another_order_are_a_change_that_is_said() -> None:
    shuffled = replace(PLAN, 0, inputs=base(PLAN).inputs[::-1])
    assert changes(PLAN, shuffled) == {"base": ["the order of its inputs"]}


def test_a_changed_setting_is_named_with_both_values() -> None:
    changed = replace(PLAN, 0, settings=base(PLAN).settings.model_copy(update={"python": "3.99"}))
    (what,) = changes(PLAN, changed)["base"]
    assert what == 'settings: python "3.11" -> "3.99"'


def with_mods(wheel: str, **texts: str) -> Plan:
    """Put a mod layer on top of the plan; each mod of its chain is told by its name and a text."""
    chain = tuple(ModLink(manifest={"name": name}, files={"patch": text}) for name, text in texts.items())
    settings = ModSettings(python="3.11", venv="opt/venv", chain=chain, wheels={"vllm": wheel}, without={})
    layer = ModLayer.of("mod", "last", (), settings)
    return PLAN.model_copy(update={"layers": (*PLAN.layers, layer)})


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (with_mods("a.whl", first="1", last="2"), "mods/last changed"),
        (with_mods("a.whl", last="1"), "mods/first is no longer applied before it"),
        (with_mods("a.whl", first="1", second="1", last="1"), "mods/second is now applied before it"),
        (with_mods("b.whl", first="1", last="1"), "the wheels that its mods change"),
    ],
)
def test_a_changed_chain_of_mods_is_told_by_their_names(after: Plan, why: str) -> None:
    assert changes(with_mods("a.whl", first="1", last="1"), after) == {"mod": [why]}


def test_layers_that_come_and_go_are_named() -> None:
    fewer = PLAN.model_copy(update={"layers": PLAN.layers[:1] + PLAN.layers[2:]})
    name = PLAN.layers[1].name
    assert [(change.name, change.what) for change in diff_plans(PLAN, fewer)] == [
        (f"wheel {name}", "removed")
    ]
    assert [(change.name, change.what) for change in diff_plans(fewer, PLAN)] == [(f"wheel {name}", "new")]


def test_a_bundle_is_recognised_though_its_name_counts_its_members() -> None:
    position = next(n for n, layer in enumerate(PLAN.layers) if layer.kind == "pure-bundle")
    first, *rest = PLAN.layers[position].inputs
    changed = replace(PLAN, position, name=f"{len(rest)} wheels", inputs=tuple(rest))
    assert changes(PLAN, changed) == {"pure-bundle": [f"input removed: {first.name}"]}


def test_a_change_of_the_matrix_is_seen_as_the_flag_it_sets(factory_checkout: Checkout) -> None:
    factory_checkout.edit_matrix("      quantization: fp8\n", "      quantization: int8\n")
    after = make_plan(Project(factory_checkout.root), GEMMA)
    text = " ".join(change.what for change in diff_plans(PLAN, after))
    assert "int8" in text


def test_the_last_plan_is_found_where_the_build_left_it(tmp_path: Path) -> None:
    assert last_plan(tmp_path) is None
    (tmp_path / LAST_PLAN).write_text(PLAN.model_dump_json())
    assert last_plan(tmp_path) == PLAN
    (tmp_path / LAST_PLAN).write_text("{}")
    assert last_plan(tmp_path) is None


def test_what_other_targets_share_is_counted_once_and_not_with_oneself() -> None:
    project = Project(REPOSITORY)
    others = [
        make_plan(project, Cell(model, "0.32.0", "gb10", "linux/arm64"))
        for model in ("gemma4-31b", "gpt-oss-120b", "qwen3.5-35b-a3b-int4")
    ]
    assert shared_download(PLAN, [PLAN]) == 0
    assert shared_download(PLAN, others) == sum(layer.download for layer in PLAN.layers[:-1])


@pytest.mark.parametrize("layer", [PLAN.layers[0], PLAN.layers[-1]])
def test_nothing_is_cached_in_an_empty_store(tmp_path: Path, layer: Layer) -> None:
    assert not is_cached(Store(tmp_path), layer)
