"""Explaining a path names its layer, its package and its lock entry."""

import io
import json

import pytest
from rich.console import Console

from imagefactory.assemble.explain import explain
from imagefactory.cli.show.tables import ownership_table
from imagefactory.lock.wheel_contents import FACTS
from imagefactory.store.digests import Sha256
from tests.fixtures.failures import raises
from tests.fixtures.small_factory import CELL, SmallFactory

SITE = "/opt/venv/lib/python3.11/site-packages"


@pytest.fixture
def built(small_factory: SmallFactory) -> SmallFactory:
    small_factory.build()
    return small_factory


def test_file_is_explained_by_its_wheel_or_package_and_their_lock(built: SmallFactory) -> None:
    wheel = explain(built.project, CELL, f"{SITE}/pure/data.bin")
    found = (wheel.owner, wheel.version, wheel.needed_by)
    assert found == ("pure-1.0-py3-none-any.whl", "1.0", ("matrix.yaml",))
    assert wheel.layer is not None
    assert (wheel.layer.kind, wheel.lock) == ("pure-bundle", built.project.wheel_lock_path(CELL))
    assert explain(built.project, CELL, f"{SITE}/pure/ünï.txt").owner == wheel.owner
    package = explain(built.project, CELL, "/etc/motd")
    assert package.layer is not None
    assert (package.owner, package.version, package.layer.kind) == ("base", "1.0", "base")
    assert package.lock == built.project.base_lock_path(CELL)
    for path in ("/opt/venv/bin/python3", "/etc/passwd"):
        assert explain(built.project, CELL, path).lock is None, "the factory makes it"


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


def test_left_out_file_is_explained_and_in_no_layer(small_factory: SmallFactory) -> None:
    why = "nothing ever opens it"
    small_factory.leave_out("lib/python3.11/site-packages/pure/data.bin", why)
    small_factory.build()
    ownership = explain(small_factory.project, CELL, f"{SITE}/pure/data.bin")
    assert (ownership.layer, ownership.owner, ownership.left_out) == (None, "pure-1.0-py3-none-any.whl", why)
    shown = io.StringIO()
    Console(file=shown, width=120).print(ownership_table(ownership, small_factory.root))
    assert f"left out because  {why}" in shown.getvalue()


def test_file_of_a_left_out_wheel_is_explained_where_its_paths_were_seen(built: SmallFactory) -> None:
    built.leave_out("lib/any.so", "CUDA 13 has its own")
    facts = built.project.store.facts(f"{FACTS}-py3.11", Sha256("9" * 64))
    facts.parent.mkdir(parents=True, exist_ok=True)
    path = "lib/python3.11/site-packages/gone/a.so"
    facts.write_text(json.dumps({"size": 1, "unpacked": 1, "paths": {path: "00000000:1"}}))
    assert explain(built.project, CELL, f"/opt/venv/{path}").left_out == "CUDA 13 has its own"


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
    with raises("path-not-in-image", match=f"owns {path}") as caught:
        explain(built.project, CELL, path)
    assert hint in caught.value.fix


def test_error_before_the_build_suggests_to_build(small_factory: SmallFactory) -> None:
    with raises("path-not-in-image") as caught:
        explain(small_factory.project, CELL, "/etc/motd")
    assert "./inv build" in caught.value.fix
