"""Plans: the layers of an image, named by what they are made of and by nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefactory.errors.locks import LockMissingError, TooManyLayersError
from imagefactory.locks.files import BaseLock, WheelLock
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.matrix.targets import select
from imagefactory.oci.format import BIG_WHEEL, MAX_LAYERS
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.store.digests import Sha256
from tests.fixtures.checkouts import REPOSITORY, Checkout

GEMMA = Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64")
QWEN = Cell("qwen3.5-35b-a3b-int4", "0.32.0", "gb10", "linux/arm64")
GPT_OSS = Cell("gpt-oss-120b", "0.32.0", "gb10", "linux/arm64")


def plan(root: Path, cell: Cell = GEMMA) -> Plan:
    return make_plan(Project(root), cell)


def edit_wheels(checkout: Checkout, change: Callable[[WheelLock], WheelLock]) -> None:
    path = checkout.locks / "0.32.0" / "gb10-linux-arm64.toml"
    change(WheelLock.read(path)).write(path)


def test_layers_are_ordered_from_the_slowest_changing_to_the_quickest() -> None:
    kinds = [layer.kind for layer in plan(REPOSITORY).layers]
    big = kinds.count("wheel")
    assert kinds == ["base", *["wheel"] * big, "pure-bundle", "platform-bundle", "serve", "model"]
    sizes = [layer.download for layer in plan(REPOSITORY).layers if layer.kind == "wheel"]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size >= BIG_WHEEL for size in sizes)


def test_every_locked_file_is_the_input_of_exactly_one_layer() -> None:
    project = Project(REPOSITORY)
    layers = [layer for layer in make_plan(project, GEMMA).layers if layer.kind != "serve"]
    inputs = [item.sha256 for layer in layers for item in layer.inputs]
    locked = [wheel.sha256 for wheel in project.wheel_lock(GEMMA).wheels]
    locked += [deb.sha256 for deb in project.base_lock(GEMMA).debs]
    assert sorted(inputs) == sorted(locked)


def test_two_models_on_one_version_share_everything_but_the_last_layer() -> None:
    one, other = plan(REPOSITORY), plan(REPOSITORY, GPT_OSS)
    assert [layer.key for layer in one.layers[:-1]] == [layer.key for layer in other.layers[:-1]]
    assert one.layers[-1].key != other.layers[-1].key
    assert one.key != other.key


def test_a_layer_key_belongs_to_one_layer() -> None:
    keys = [layer.key for layer in plan(REPOSITORY).layers]
    assert len(keys) == len(set(keys))


def test_a_plan_survives_the_way_through_json() -> None:
    made = plan(REPOSITORY)
    assert Plan.model_validate_json(made.model_dump_json()) == made
    assert made.cell == GEMMA


def test_where_the_checkout_is_does_not_matter(factory_checkout: Checkout) -> None:
    assert plan(factory_checkout.root) == plan(REPOSITORY)


def test_the_order_of_a_lock_does_not_matter(factory_checkout: Checkout) -> None:
    before = plan(factory_checkout.root)
    edit_wheels(factory_checkout, lambda lock: lock.model_copy(update={"wheels": lock.wheels[::-1]}))
    assert plan(factory_checkout.root) == before


def test_a_changed_file_changes_the_key_of_its_layer_and_of_the_plan_only(factory_checkout: Checkout) -> None:
    before = plan(factory_checkout.root)

    def change(lock: WheelLock) -> WheelLock:
        first, *rest = lock.wheels
        return lock.model_copy(
            update={"wheels": (first.model_copy(update={"sha256": Sha256("1" * 64)}), *rest)}
        )

    edit_wheels(factory_checkout, change)
    after = plan(factory_checkout.root)
    changed = [
        one.kind for one, other in zip(before.layers, after.layers, strict=True) if one.key != other.key
    ]
    assert len(changed) == 1
    assert before.key != after.key


def test_a_path_given_up_to_another_wheel_changes_the_key(factory_checkout: Checkout) -> None:
    before = plan(factory_checkout.root)

    def change(lock: WheelLock) -> WheelLock:
        return lock.model_copy(
            update={"wheels": tuple(wheel.model_copy(update={"without": ()}) for wheel in lock.wheels)}
        )

    edit_wheels(factory_checkout, change)
    assert plan(factory_checkout.root).key != before.key


def test_the_platform_and_the_packages_of_the_base_decide_its_key(factory_checkout: Checkout) -> None:
    before = plan(factory_checkout.root).layers[0]
    path = factory_checkout.locks / "bookworm" / "linux-arm64.toml"
    lock = BaseLock.read(path)
    lock.model_copy(update={"debs": lock.debs[1:]}).write(path)
    assert plan(factory_checkout.root).layers[0].key != before.key


def test_serving_settings_change_the_last_layer_only(factory_checkout: Checkout) -> None:
    before = plan(factory_checkout.root)
    factory_checkout.edit_matrix("      quantization: fp8\n", "      quantization: int8\n")
    after = plan(factory_checkout.root)
    assert [layer.key for layer in after.layers[:-1]] == [layer.key for layer in before.layers[:-1]]
    assert after.layers[-1].key != before.layers[-1].key


def test_an_environment_variable_of_the_model_changes_the_plan(factory_checkout: Checkout) -> None:
    before = plan(factory_checkout.root)
    factory_checkout.edit_matrix('VLLM_DISABLE_COMPILE_CACHE: "1"', 'VLLM_DISABLE_COMPILE_CACHE: "0"')
    assert plan(factory_checkout.root).key != before.key


def test_a_drafter_that_the_version_cannot_run_is_not_in_the_image() -> None:
    old = plan(REPOSITORY, Cell("gemma4-31b", "0.24.0", "gb10", "linux/arm64"))
    new = plan(REPOSITORY)
    assert old.config.labels["imagefactory.drafter"] != new.config.labels["imagefactory.drafter"]


def test_an_unlocked_cell_cannot_be_planned(factory_checkout: Checkout) -> None:
    shutil.rmtree(factory_checkout.locks / "0.28.0")
    project = Project(factory_checkout.root)
    (cell,) = select(project.matrix, ["gemma4-31b@0.28.0"])
    with pytest.raises(LockMissingError, match="invoke lock"):
        make_plan(project, cell)


def test_more_layers_than_an_engine_can_stack_are_refused(factory_checkout: Checkout) -> None:
    def change(lock: WheelLock) -> WheelLock:
        grown = [wheel.model_copy(update={"size": wheel.size + BIG_WHEEL}) for wheel in lock.wheels]
        return lock.model_copy(update={"wheels": tuple(grown)})

    edit_wheels(factory_checkout, change)
    with pytest.raises(TooManyLayersError, match=f"{MAX_LAYERS} are allowed"):
        plan(factory_checkout.root)
