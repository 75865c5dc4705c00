"""What a build writes into locks/layers.toml, and what it must not."""

from __future__ import annotations

import tomllib

import pytest
import tomli_w

from imagefactory.build.assemble import Built
from imagefactory.build.recording import confirm, remember
from imagefactory.errors.layers import NotReproducibleError
from imagefactory.errors.store import DamagedCacheError
from imagefactory.oci.blob import Blob
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.store.digests import Sha256
from tests.fixtures.night_factory import ModdedFactory
from tests.fixtures.small_factory import SmallFactory
from tests.unit.build.test_changed_cache import poison


@pytest.fixture
def factory(small_factory: SmallFactory) -> ModdedFactory:
    return ModdedFactory(small_factory.folder)


def blobs_of(built: Built) -> dict[Sha256, Blob]:
    return {layer.key: blob for layer, blob in zip(built.plan.layers, built.image.layers, strict=True)}


def recorded(factory: SmallFactory) -> tuple[set[str], set[str]]:
    """Return the keys of the recorded layers, and the names of the recorded wheels."""
    data = tomllib.loads(factory.project.known_layers.read_text("utf-8"))
    return {layer["key"] for layer in data["layers"]}, {wheel["wheel"] for wheel in data["wheels"]}


def test_every_new_layer_is_recorded_and_so_is_the_wheel_that_a_mod_changes(factory: ModdedFactory) -> None:
    [built] = factory.build()
    layers, wheels = recorded(factory)
    assert layers == {layer.key for layer in built.plan.layers}
    assert [name.partition("-")[0] for name in wheels] == ["vllm"]


def test_a_layer_that_no_locked_target_needs_is_dropped(factory: ModdedFactory) -> None:
    [old] = factory.build()
    factory.write_mod("good evening")
    [new] = factory.build()
    gone = {layer.key for layer in old.plan.layers} - {layer.key for layer in new.plan.layers}
    layers, _ = recorded(factory)
    assert gone
    assert layers == {layer.key for layer in new.plan.layers}


def test_a_changed_wheel_is_not_recorded(factory: ModdedFactory) -> None:
    [built] = factory.build()
    record = factory.project.known_layers
    record.unlink()
    [mod] = [layer for layer in built.plan.layers if layer.kind == "mod"]
    [wheel] = mod.inputs
    file = factory.project.store.download(wheel.sha256)
    poison(file)
    with pytest.raises(DamagedCacheError) as caught:
        remember(factory.project, KnownLayers(record), [built.plan], blobs_of(built))
    assert caught.value.where == str(file.resolve())
    assert not record.exists()


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
    with pytest.raises(NotReproducibleError):
        confirm(known, [built.plan], blobs | {second.key: blobs[first.key]}, store)
    assert store.layer(first.key).exists()
    assert not store.layer(second.key).exists()
