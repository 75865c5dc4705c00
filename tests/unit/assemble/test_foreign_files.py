"""A mod adds nothing that hides, replaces or lies below a file of another distribution in the image."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.failures import raises
from tests.fixtures.mods import Data, has, manifest, plugin_mod, write_mod
from tests.fixtures.small_factory import SmallFactory


def adding(path: str, distribution: str = "namespaced") -> Data:
    """Describe a mod that adds a file."""
    return manifest("m", {"add": path, "source": "new"}, checks=[has(path, "new")], distribution=distribution)


@pytest.fixture
def mods(small_factory: SmallFactory) -> Path:
    return small_factory.replace_mods()


@pytest.mark.parametrize("path", ["shared/two.py", "shared/two.py/below.py"])
def test_a_file_of_another_distribution_stays_as_it_is(
    small_factory: SmallFactory, mods: Path, path: str
) -> None:
    write_mod(mods, adding(path), {"new": "new\n"})
    with raises("taken-path", match=r"may not add, hide or change shared/two\.py") as caught:
        small_factory.build()
    assert caught.value.why == "sharing installs it."
    assert caught.value.where.startswith("mods/m/mod.yaml:")


def test_a_folder_of_another_distribution_is_not_hidden(small_factory: SmallFactory, mods: Path) -> None:
    write_mod(mods, adding("pure/long", "pure"), {"new": "new\n"})
    with raises("taken-path", match="may not add, hide or change pure/long/"):
        small_factory.build()


@pytest.mark.parametrize("path", ["torch/__init__.py", "pure/new.py", "elsewhere.py", "new/__init__.py"])
def test_a_file_in_no_package_of_the_distribution_is_refused(
    small_factory: SmallFactory, mods: Path, path: str
) -> None:
    write_mod(mods, adding(path), {"new": "new\n"})
    with raises("bad-mod-path") as caught:
        small_factory.build()
    assert "in no package of namespaced" in caught.value.why


def test_a_file_in_a_package_of_the_distribution_is_added(small_factory: SmallFactory, mods: Path) -> None:
    write_mod(mods, adding("shared/three.py"), {"new": "new = 3\n"})
    [built] = small_factory.build()
    assert [layer.name for layer in built.plan.layers if layer.kind == "mod"] == ["m"]


@pytest.mark.parametrize("name", ["pure", "shared", "platform_"])
def test_a_package_that_a_mod_brings_along_replaces_none(
    small_factory: SmallFactory, mods: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    data = plugin_mod(tmp_path / "source", package=name, distribution="platform")
    write_mod(mods, data)
    monkeypatch.setenv("FACTORY_SOURCE_PLUGIN", str(tmp_path / "source"))
    with raises("taken-path", match=f"{name}/__init__") as caught:
        small_factory.build()
    owners = {"pure": "pure", "shared": "namespaced", "platform_": "platform"}
    assert caught.value.why == f"{owners[name]} installs it."


@pytest.mark.parametrize("name", [".wh.code.py", "new\nline.py", "run.pth"])
def test_a_package_that_a_mod_brings_along_has_safe_names(
    small_factory: SmallFactory, mods: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "source"
    write_mod(mods, plugin_mod(folder, extra=name, distribution="platform"))
    monkeypatch.setenv("FACTORY_SOURCE_PLUGIN", str(folder))
    with raises("forbidden-path", match="may not add"):
        small_factory.build()


def test_two_mods_of_different_distributions_do_not_add_the_same_file(
    small_factory: SmallFactory, mods: Path
) -> None:
    path = "/usr/share/imagefactory/mods/t"
    for name, distribution in (("a", "pure"), ("b", "platform")):
        write_mod(mods, adding(path, distribution) | {"name": name}, {"new": "new\n"})
    with raises("taken-path") as caught:
        small_factory.build()
    assert caught.value.why == "The mod a adds it, too."
