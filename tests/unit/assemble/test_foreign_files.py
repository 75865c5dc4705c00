"""A mod adds nothing that hides, replaces or lies below a file of another distribution in the image."""

from pathlib import Path

import pytest

from tests.fixtures.failures import raises
from tests.fixtures.mods import adding, write_mod
from tests.fixtures.small_factory import SmallFactory


@pytest.fixture
def mods(small_factory: SmallFactory) -> Path:
    return small_factory.replace_mods()


@pytest.mark.parametrize(
    ("path", "distribution", "taken"),
    [
        ("shared/two.py", "namespaced", "shared/two.py"),
        ("shared/two.py/below.py", "namespaced", "shared/two.py"),
        ("pure/long", "pure", "pure/long/"),
    ],
)
def test_a_file_or_folder_that_a_distribution_installs_stays_as_it_is(
    small_factory: SmallFactory, mods: Path, path: str, distribution: str, taken: str
) -> None:
    write_mod(mods, adding(path, distribution=distribution), {"new": "new\n"})
    with raises("taken-path", match=f"may not add, hide or change {taken}") as caught:
        small_factory.build()
    assert caught.value.why == ("sharing installs it." if distribution == "namespaced" else "pure installs it.")
    assert caught.value.where.startswith("mods/m/mod.yaml:")


@pytest.mark.parametrize("path", ["torch/__init__.py", "pure/new.py", "elsewhere.py", "new/__init__.py"])
def test_a_file_in_no_package_of_the_distribution_is_refused(
    small_factory: SmallFactory, mods: Path, path: str
) -> None:
    write_mod(mods, adding(path, distribution="namespaced"), {"new": "new\n"})
    with raises("bad-mod-path") as caught:
        small_factory.build()
    assert "in no package of namespaced" in caught.value.why


def test_two_mods_of_different_distributions_do_not_add_the_same_file(small_factory: SmallFactory, mods: Path) -> None:
    path = "/usr/share/imagefactory/mods/t"
    for name, distribution in (("a", "pure"), ("b", "platform")):
        write_mod(mods, adding(path, name, distribution=distribution), {"new": "new\n"})
    with raises("taken-path") as caught:
        small_factory.build()
    assert caught.value.why == "The mod a adds it, too."
