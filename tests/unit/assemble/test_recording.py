"""What a build writes into locks/layers.toml, and what it must not."""

from __future__ import annotations

import tomllib

import pytest
import tomli_w

from imagefactory.assemble.assemble import Built, confirm, drop_unneeded, remember
from imagefactory.oci.image import Blob
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.project.locks.kernels import SlimLock
from imagefactory.store.digests import Sha256
from tests.fixtures.failures import raises
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


def blobs_of(built: Built) -> dict[Sha256, Blob]:
    return {layer.key: blob for layer, blob in zip(built.plan.layers, built.image.layers, strict=True)}


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


def test_what_others_recorded_meanwhile_is_kept(factory: ModdedFactory) -> None:
    [built] = factory.build()
    record, before = factory.project.known_layers, recorded(factory)
    whole = tomllib.loads(record.read_text("utf-8"))
    record.unlink()
    nothing = KnownLayers(record)  # as one build read it; then another one finishes first
    theirs, ours = built.plan.layers[0], built.plan.layers[1:]
    only = [layer for layer in whole["layers"] if layer["key"] == theirs.key]
    record.write_text(tomli_w.dumps(whole | {"layers": only}), "utf-8")
    part = built.plan.model_copy(update={"layers": ours})
    remember(factory.project, nothing, [part], blobs_of(built))
    assert recorded(factory) == before


def test_a_layer_that_differs_from_its_record_leaves_the_cache(factory: ModdedFactory) -> None:
    [built] = factory.build()
    store, known = factory.project.store, KnownLayers(factory.project.known_layers)
    blobs = blobs_of(built)
    first, second, *_ = built.plan.layers
    confirm(known, [built.plan], blobs, store)
    with raises("not-reproducible"):
        confirm(known, [built.plan], blobs | {second.key: blobs[first.key]}, store)
    assert store.layer(first.key).exists()
    assert not store.layer(second.key).exists()
