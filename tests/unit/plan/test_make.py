"""Plans: the layers of an image, with keys that depend on their inputs and settings only."""

import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from imagefactory.oci.format import BIG_WHEEL, MAX_LAYERS
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import BaseLock, LeftOutFiles, LockedWheel, WheelLock
from imagefactory.project.matrix import PLACEHOLDER
from imagefactory.project.project import Project, locked_cells
from imagefactory.project.targets import select_one
from imagefactory.store.digests import Sha256
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.failures import raises
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory

Wheels = tuple[LockedWheel, ...]


def plan(factory: SmallFactory, cell: Cell = CELL) -> Plan:
    return make_plan(factory.project, cell)


def edit_wheels(factory: SmallFactory, change: Callable[[Wheels], Iterable[LockedWheel]]) -> None:
    path = factory.project.wheel_lock_path(CELL)
    lock = WheelLock.read(path)
    lock.model_copy(update={"wheels": tuple(change(lock.wheels))}).write(path)


def changed(wheel: LockedWheel, **updates: object) -> LockedWheel:
    return wheel.model_copy(update=updates)


def keys(made: Plan) -> list[str]:
    return [layer.key for layer in made.layers]


def test_layers_are_ordered_from_the_slowest_to_the_fastest_changing(small_factory: SmallFactory) -> None:
    small, large = BIG_WHEEL, BIG_WHEEL + 1
    edit_wheels(small_factory, lambda all_: (changed(all_[0], size=small), changed(all_[3], size=large), *all_[1:3]))
    layers = plan(small_factory).layers
    assert [layer.kind for layer in layers] == ["base", "wheel", "wheel", "pure-bundle", "serve", "model"]
    assert [layer.download for layer in layers[1:3]] == [large, small]


def test_every_locked_file_is_the_input_of_exactly_one_layer(small_factory: SmallFactory) -> None:
    project, made = small_factory.project, plan(small_factory)
    inputs = [item.sha256 for layer in made.layers if layer.kind != "serve" for item in layer.inputs]
    locked = [wheel.sha256 for wheel in project.wheel_lock(CELL).wheels]
    locked += [deb.sha256 for deb in project.base_lock(CELL).debs]
    assert sorted(inputs) == sorted(locked)
    assert len(keys(made)) == len(set(keys(made)))


@pytest.mark.parametrize(("owner", "cloned_from"), [("somebody", "another"), (PLACEHOLDER, "somebody")])
def test_a_fork_makes_the_same_images(factory_checkout: Checkout, owner: str, cloned_from: str) -> None:
    root = factory_checkout.root
    text = factory_checkout.matrix.read_text("utf-8")
    text = re.sub(r"^(registry: ghcr.io|source: https://github.com)/[\w-]+/", rf"\1/{owner}/", text, flags=re.MULTILINE)
    factory_checkout.matrix.write_text(text, "utf-8")
    for words in (["init", "-q"], ["remote", "add", "origin", f"https://github.com/{cloned_from}/factory"]):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    ours, fork = Project(REPOSITORY), Project(root)
    assert fork.matrix.effective_registry.startswith("ghcr.io/somebody/")
    assert fork.matrix.effective_source.startswith("https://github.com/somebody/")
    in_the_readme = select_one(ours.matrix, "")
    cells = {(cell.arch, cell.platform): cell for cell in (*locked_cells(ours), in_the_readme)}
    assert {"gb10", "rtx5090", "h100", "cpu"} <= {arch for arch, _ in cells}
    for cell in cells.values():
        our_plan, fork_plan = (make_plan(project, cell) for project in (ours, fork))
        assert our_plan.key == fork_plan.key
        image = KnownLayers(ours.known_layers).image(our_plan)
        assert image is not None, cell
        assert image == KnownLayers(fork.known_layers).image(fork_plan)


def test_two_models_on_one_version_share_all_layers_but_the_last(small_factory: SmallFactory) -> None:
    one, other = plan(small_factory), plan(small_factory, SECOND)
    assert keys(one)[:-1] == keys(other)[:-1]
    assert keys(one)[-1] != keys(other)[-1]
    assert one.key != other.key


def test_neither_the_folder_of_a_checkout_nor_the_order_of_a_lock_matters(
    small_factory: SmallFactory, tmp_path: Path
) -> None:
    before = plan(small_factory)
    assert Plan.model_validate_json(before.model_dump_json()) == before
    assert before.cell == CELL
    assert plan(SmallFactory(tmp_path / "elsewhere")) == before
    edit_wheels(small_factory, lambda wheels: wheels[::-1])
    assert plan(small_factory) == before


@pytest.mark.parametrize("update", [{"sha256": Sha256("1" * 64)}, {"without": ("left/to/another.py",)}])
def test_a_changed_wheel_changes_only_its_layer(small_factory: SmallFactory, update: dict[str, object]) -> None:
    before = plan(small_factory)
    edit_wheels(small_factory, lambda wheels: (changed(wheels[0], **update), *wheels[1:]))
    after = plan(small_factory)
    assert sum(one != other for one, other in zip(keys(before), keys(after), strict=True)) == 1
    assert before.key != after.key


def test_left_out_files_change_the_layer_and_their_reason_does_not(small_factory: SmallFactory) -> None:
    wheels = small_factory.project.wheel_lock(CELL).wheels
    plans = [plan(small_factory)]
    for reason in ("one reason", "another reason"):
        left = LeftOutFiles(reason=reason, unpacked=7, paths=("lib/left.so",))
        changing = (changed(wheels[0], left_out=(left,)), *wheels[1:])
        edit_wheels(small_factory, lambda _, new=changing: new)  # type: ignore[misc]
        plans.append(plan(small_factory))
    before, after, again = plans
    assert sum(one != other for one, other in zip(keys(before), keys(after), strict=True)) == 1
    assert keys(after) == keys(again)
    assert sum(layer.unpacked for layer in after.layers) == sum(layer.unpacked for layer in before.layers) - 7


def test_a_changed_package_changes_the_base(small_factory: SmallFactory) -> None:
    before = plan(small_factory)
    lock = small_factory.project.base_lock(CELL)
    path = BaseLock.path(small_factory.root / "locks", lock.base, lock.platform)
    lock.model_copy(update={"debs": lock.debs[1:]}).write(path)
    after = plan(small_factory)
    assert keys(after)[0] != keys(before)[0]
    assert keys(after)[1:] == keys(before)[1:]


def test_serving_settings_change_the_last_layer_and_variables_none(small_factory: SmallFactory) -> None:
    before = plan(small_factory)
    small_factory.edit_matrix("weights: dummy", 'weights: dummy, serve: {env: {FAST: "1"}}')
    after = plan(small_factory)
    assert keys(after) == keys(before)
    assert after.key != before.key
    small_factory.edit_matrix("serve: {", "serve: {quantization: fp8, ")
    assert keys(plan(small_factory))[:-1] == keys(before)[:-1]
    assert keys(plan(small_factory))[-1] != keys(before)[-1]


def test_the_first_drafter_that_the_version_supports_is_used(small_factory: SmallFactory) -> None:
    new = '{repo: a/new, method: dflash, tokens: 15, vllm: ">=2"}'
    old = "{repo: a/old, method: dflash, tokens: 8}"
    small_factory.edit_matrix("weights: bf16", f"weights: bf16, drafters: [{new}, {old}]")
    assert plan(small_factory).config.labels["imagefactory.drafter"] == "none"
    assert plan(small_factory, SECOND).config.labels["imagefactory.drafter"] == "a/old"


def test_an_unlocked_cell_or_too_many_layers_cannot_be_planned(small_factory: SmallFactory) -> None:
    names = [f"big{number}" for number in range(MAX_LAYERS)]
    edit_wheels(small_factory, lambda wheels: (changed(wheels[0], name=name, size=BIG_WHEEL) for name in names))
    with raises("too-many-layers", match=f"{MAX_LAYERS} are allowed"):
        plan(small_factory)
    small_factory.project.wheel_lock_path(CELL).unlink()
    with raises("no-lock", match="./inv lock"):
        plan(small_factory)
