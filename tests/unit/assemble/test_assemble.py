"""Building targets: shared work is done once, a vanished package does not stop a newcomer, errors leave no image."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefactory.assemble.images_here import built_layouts
from imagefactory.assemble.watch import LayerState
from imagefactory.lock.mirrors import DebianMirrors
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.store.http import Retry
from tests.fixtures.failures import raises
from tests.fixtures.mods import edit, has, manifest, write_mod
from tests.fixtures.platforms import MACHINE
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory
from tests.unit.assemble.test_verify import flip


def states(factory: SmallFactory, layer: str) -> list[str]:
    return [state for name, state in factory.watch.told if name == layer]


def test_a_layer_goes_through_its_states(small_factory: SmallFactory) -> None:
    small_factory.build()
    assert states(small_factory, "platform-bundle 1 wheels")[-2:] == ["packing", "done"]
    assert "downloading" in states(small_factory, "base bookworm")
    small_factory.watch.told.clear()
    small_factory.build()
    assert {state for _, state in small_factory.watch.told} == {"cached"}


def test_bytes_are_counted_once_and_a_mod_waits_for_the_wheel_of_another_layer(
    small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = edit("pure/__init__.py", "VALUE = 1\n", after="# more\n")
    checks = [has("pure/__init__.py", "# more")]
    write_mod(small_factory.replace_mods(), manifest("first", change, checks=checks, distribution="pure"))
    totals: dict[str, int] = {}

    def state(key: str, state: LayerState, _: int, total: int) -> None:
        small_factory.watch.told.append((small_factory.watch.names[key], state))
        if state == "downloading":
            totals[key] = total

    monkeypatch.setattr(small_factory.watch, "state", state)
    [built] = small_factory.build()
    files = {file.sha256 for layer in built.plan.layers for file in layer.inputs}
    sizes = [small_factory.project.store.download(sha256).stat().st_size for sha256 in files]
    assert sum(totals.values()) == sum(sizes)
    assert states(small_factory, "mod first") == ["waiting for wheels", "waiting", "packing", "done"]


def test_targets_of_one_call_share_their_layers(small_factory: SmallFactory) -> None:
    one, other = small_factory.build(CELL, SECOND)
    done = [name for name, state in small_factory.watch.told if state == "done"]
    assert len(done) == len(set(done))
    assert one.layout.folder != other.layout.folder


def images_of(factory: SmallFactory) -> list[Path]:
    return list((factory.root / "build").glob("*/index.json"))


@pytest.mark.parametrize(("spoil", "error"), [(flip, "wrong-digest"), (None, "download-failed")])
def test_a_wheel_that_is_another_than_the_locked_one_or_nowhere_stops_the_build(
    small_factory: SmallFactory, spoil: Callable[[bytes], bytes] | None, error: str
) -> None:
    [wheel] = small_factory.links.glob("platform-*")
    data = wheel.read_bytes()
    wheel.unlink()
    if spoil is not None:
        wheel.write_bytes(spoil(data))
    with raises(error, match="platform-3") as caught:
        small_factory.build()
    assert spoil or "PIP_FIND_LINKS" in caught.value.fix
    assert images_of(small_factory) == []


def test_a_vanished_package_stops_the_build_with_the_remedy(
    small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (small_factory.mirror / f"pool/main/more_2.0_{MACHINE}.deb").unlink()
    mirrors = DebianMirrors(main=(str(small_factory.mirror),), snapshots=None)
    monkeypatch.setattr("imagefactory.store.downloads.RETRY", Retry(pause=0))
    monkeypatch.setattr(DebianMirrors, "discover", lambda _: mirrors)
    with raises("download-failed", match=rf"more_2\.0_{MACHINE}\.deb") as caught:
        small_factory.build()
    assert "./inv lock --upgrade base" in caught.value.fix
    assert images_of(small_factory) == []


def test_built_images_are_found_by_target(small_factory: SmallFactory) -> None:
    with raises("no-image"):
        built_layouts(small_factory.project, ["tiny"])
    small_factory.build()
    [(cell, layout, name)] = built_layouts(small_factory.project, ["tiny"])
    expected = (CELL, small_factory.project.build_folder(CELL), f"small:{CELL.slug}")
    assert (cell, layout.folder, name) == expected
    with raises("unknown-name", match="matches 2 images"):
        built_layouts(small_factory.project, ["all"], one=True)


def test_a_record_that_cannot_be_written_does_not_lose_the_image(
    small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("imagefactory.plan.known_layers.write_text", refuse)
        with raises("record-not-written") as failure:
            small_factory.build()
    layout = small_factory.project.build_folder(CELL)
    digest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    assert str(layout) in failure.value.why
    assert digest in failure.value.why
    [built] = small_factory.build()
    assert built.image.digest == digest
    assert KnownLayers(small_factory.project.known_layers).image(built.plan) == built.image
