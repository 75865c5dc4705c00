"""Mods are applied before any layer is built, to the wheels that they change, and only for layers that are missing."""

import pytest

from imagefactory.assemble import applied_mods
from tests.fixtures.failures import raises
from tests.fixtures.mods import edit, has, manifest, write_mod
from tests.fixtures.small_factory import SmallFactory


def test_mods_are_applied_first_and_a_cached_layer_needs_none(
    small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    mods = small_factory.replace_mods()
    places = {
        "first": ("pure/__init__.py", "VALUE = 1\n"),
        "second": (f"pure/{'long/' * 40}name.txt", "and be long\n"),
    }
    for name, (path, anchor) in places.items():
        change = edit(path, anchor, after=f"# {name}\n")
        write_mod(mods, manifest(name, change, checks=[has(path, f"# {name}")], distribution="pure"))
    [built] = small_factory.build()
    assert [layer.name for layer in built.plan.layers if layer.kind == "mod"] == ["first", "second"]
    with monkeypatch.context() as patch:
        patch.delattr(applied_mods, "apply_group")
        small_factory.build()
    small_factory.watch.told.clear()
    change, checks = edit("pure/absent.py", "VALUE", replace="1"), [has("pure/absent.py", "1")]
    write_mod(mods, manifest("unfit", change, checks=checks, distribution="pure"))
    with raises("mod-file", match="does not exist"):
        small_factory.build()
    assert "packing" not in {state for _, state in small_factory.watch.told}
