"""What a build writes into locks/layers.toml, and what it must not."""

import tomllib

import pytest

from imagefactory.assemble.layer_records import drop_unneeded
from imagefactory.project.locks.kernels import SlimLock
from tests.fixtures.night_factory import ModdedFactory
from tests.fixtures.small_factory import SmallFactory


@pytest.fixture
def factory(small_factory: SmallFactory) -> ModdedFactory:
    return ModdedFactory(small_factory.folder)


@pytest.fixture
def slimming(small_factory: SmallFactory) -> SmallFactory:
    """A factory that slims the libraries of wheels."""
    small_factory.edit_matrix("{cpu: {", '{cpu: {capability: "12.1", slim: yes, ')
    return small_factory


def recorded(factory: SmallFactory) -> set[str]:
    """Return the keys of the recorded layers."""
    data = tomllib.loads(factory.project.known_layers.read_text("utf-8"))
    return {layer["key"] for layer in data["layers"]}


def test_new_layers_are_recorded_and_old_ones_stay_until_they_are_dropped(factory: ModdedFactory) -> None:
    [old] = factory.build()
    before = {layer.key for layer in old.plan.layers}
    assert recorded(factory) == before
    factory.write_mod("good evening")
    [new] = factory.build()
    now = {layer.key for layer in new.plan.layers}
    assert recorded(factory) == before | now != now
    drop_unneeded(factory.project)
    assert recorded(factory) == now


def test_records_of_slimmed_wheels_are_written_again_if_lost_and_dropped_with_the_setting(
    slimming: SmallFactory,
) -> None:
    slimming.build()
    lock = SlimLock.path(slimming.project.locks)
    before = lock.read_bytes()
    lock.unlink()
    slimming.build()
    assert lock.read_bytes() == before
    assert slimming.project.slim_lock.wheels
    slimming.edit_matrix("slim: yes, ", "")
    drop_unneeded(slimming.project)
    assert slimming.project.slim_lock.wheels == ()
