"""Explaining a path names its layer, its package and its lock entry."""

from __future__ import annotations

import pytest

from imagefactory.build.explain import explain
from imagefactory.errors.layers import PathNotFoundError
from tests.fixtures.small_factory import CELL, SmallFactory

SITE = "/opt/venv/lib/python3.11/site-packages"


@pytest.fixture
def built(small_factory: SmallFactory) -> SmallFactory:
    small_factory.build()
    return small_factory


def test_file_of_a_wheel_is_explained_by_wheel_and_lock(built: SmallFactory) -> None:
    ownership = explain(built.project, CELL, f"{SITE}/pure/data.bin")
    assert ownership.owner == "pure-1.0-py3-none-any.whl"
    assert (ownership.layer.kind, ownership.version, ownership.needed_by) == (
        "pure-bundle",
        "1.0",
        ("matrix.yaml",),
    )
    assert ownership.lock == built.project.wheel_lock_path(CELL)


def test_files_of_a_graft_are_told_apart(built: SmallFactory) -> None:
    wheel = built.graft()
    assert wheel.graft is not None
    [file] = wheel.graft.replaced
    folder = file.path.rpartition("/")[0]

    def whose(path: str) -> str:
        return explain(built.project, CELL, f"{SITE}/{path}").whose

    assert whose(file.path) == f"compiled as {'a' * 16}, in place of the published {'c' * 16}"
    assert whose(f"{folder}/__init__.py") == f"published in {wheel.graft.file}"
    assert whose(f"{wheel.name}-{wheel.version}.dist-info/METADATA") == "written for the grafted wheel"


def test_file_of_a_package_is_explained_by_the_package(built: SmallFactory) -> None:
    ownership = explain(built.project, CELL, "/etc/motd")
    assert (ownership.owner, ownership.version, ownership.layer.kind) == ("base", "1.0", "base")
    assert ownership.lock == built.project.base_lock_path(CELL)


@pytest.mark.parametrize("path", ["/opt/venv/bin/python3", "/etc/passwd"])
def test_file_of_the_factory_has_no_lock(built: SmallFactory, path: str) -> None:
    assert explain(built.project, CELL, path).lock is None


def test_path_may_have_any_letter(built: SmallFactory) -> None:
    assert explain(built.project, CELL, f"{SITE}/pure/ünï.txt").owner.startswith("pure")


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/usr/bin/data.bin", f"Did you mean {SITE}/pure/data.bin?"),
        (f"{SITE}/pure/dat.bin", f"Did you mean {SITE}/pure/data.bin?"),
        ("/nothing/like/it", "Check the spelling."),
        (f"{SITE}/pure", f"name a file, such as {SITE}/pure/__init__.py."),
    ],
)
def test_unknown_path_is_an_error_with_the_nearest(built: SmallFactory, path: str, hint: str) -> None:
    with pytest.raises(PathNotFoundError, match=f"owns {path}") as caught:
        explain(built.project, CELL, path)
    assert hint in caught.value.fix


def test_error_before_the_build_suggests_to_build(small_factory: SmallFactory) -> None:
    with pytest.raises(PathNotFoundError) as caught:
        explain(small_factory.project, CELL, "/etc/motd")
    assert "invoke build" in caught.value.fix
