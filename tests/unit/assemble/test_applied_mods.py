"""Mods are applied once per build, before any layer is built, to the wheels that they change."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from imagefactory.assemble import applied_mods
from images.shipped.mods.apply import Applied, Reader, apply_mods
from images.shipped.mods.manifest import Mod, Variant
from tests.fixtures.failures import raises
from tests.fixtures.mods import edit, has, manifest, write_mod
from tests.fixtures.small_factory import SmallFactory


@pytest.fixture
def mods(small_factory: SmallFactory) -> Path:
    """Two mods of one wheel, one on top of the other."""
    folder = small_factory.replace_mods()
    places = {
        "first": ("pure/__init__.py", "VALUE = 1\n"),
        "second": (f"pure/{'long/' * 40}name.txt", "and be long\n"),
    }
    for name, (path, anchor) in places.items():
        change = edit(path, anchor, after=f"# {name}\n")
        write_mod(folder, manifest(name, change, checks=[has(path, f"# {name}")], distribution="pure"))
    return folder


@pytest.mark.usefixtures("mods")
def test_a_chain_is_applied_once_and_a_cached_layer_needs_no_mod(
    small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    chains: list[int] = []

    def counting(chosen: Sequence[tuple[Mod, Variant]], read: Reader) -> list[Applied]:
        chains.append(len(chosen))
        return apply_mods(chosen, read)

    monkeypatch.setattr(applied_mods, "apply_group", counting)
    [built] = small_factory.build()
    assert [layer.name for layer in built.plan.layers if layer.kind == "mod"] == ["first", "second"]
    assert chains == [2]
    small_factory.build()
    assert chains == [2], "cached layers need no mod"


def test_a_mod_that_does_not_fit_stops_the_build_before_any_layer(small_factory: SmallFactory, mods: Path) -> None:
    change = edit("pure/absent.py", "VALUE", replace="1")
    checks = [has("pure/absent.py", "1")]
    write_mod(mods, manifest("unfit", change, checks=checks, distribution="pure"))
    with raises("mod-file", match="does not exist"):
        small_factory.build()
    assert "splicing" not in {state for _, state in small_factory.watch.told}
