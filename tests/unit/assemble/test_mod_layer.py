"""A mod's layer holds the files it changed, a RECORD that is true, and a note of what was done; nothing else."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from imagefactory.assemble.applied_mods import RECORD_OF_MODS, InstalledWheel, apply_chain, mod_entries
from imagefactory.assemble.layers.wheel_layer import record_hash, wheel_entries
from imagefactory.mods.choose import Chosen
from imagefactory.oci.entry import Entry, read_content
from imagefactory.plan.make import _mod_layers
from imagefactory.plan.plan import Environment, ModLayer, ModSettings
from imagefactory.project.locks.files import WheelLock
from imagefactory.store.digests import sha256_of
from images.shipped.mods.manifest import Mod, Variant
from tests.fixtures.failures import raises
from tests.fixtures.lock_files import MADE_FROM, locked_wheel
from tests.fixtures.mods import edit, has, inserting, make_mod, manifest
from tests.fixtures.wheels import WheelFactory

ENVIRONMENT = Environment(venv="opt/venv", python="3.11")
SITE = "opt/venv/lib/python3.11/site-packages"
FILES: dict[str, bytes | str] = {
    "vllm/__init__.py": "",
    "vllm/x.py": "one = 1\ntwo = 2\nthree = 3\n" + "# filler\n" * 10_000,
    "vllm/y.py": "y = 1\n",
    "vllm/__pycache__/x.cpython-311.pyc": b"stale",
    "vllm-1.5.data/scripts/tool": "#!python\nprint(1)\n",
}
Picked = tuple[Mod, Variant]


@pytest.fixture
def wheels(wheel_factory: WheelFactory) -> dict[str, Path]:
    paths = [
        wheel_factory("vllm", "1.5", files=FILES, entry_points={"vllm": "vllm:main"}),
        wheel_factory("flash-thing", "7.0", files={"flash/__init__.py": "SLOW = 1\n"}),
    ]
    return {path.name: path for path in paths}


@pytest.fixture
def mods(tmp_path: Path) -> Path:
    return tmp_path / "mods"


def layers(wheels: dict[str, Path], *chosen: Picked) -> list[ModLayer]:
    lock = WheelLock(
        made_from=MADE_FROM,
        version="1.5",
        arch="cpu",
        platform="linux/amd64",
        python="3.11",
        kernels="upstream",
        wheels=tuple(map(locked_wheel, wheels.values())),
    )
    return list(_mod_layers(lock, "vllm", Chosen(tuple(chosen), ()), None))


def entries(layer: ModLayer, wheels: dict[str, Path]) -> dict[str, Entry]:
    # As in a plan that was written and read again.
    settings = ModSettings.model_validate_json(layer.settings.model_dump_json())
    trees = {
        distribution: InstalledWheel(wheels[file], file, ENVIRONMENT) for distribution, file in settings.wheels.items()
    }
    applied = apply_chain([(mod, mod.manifest.variants[0]) for mod in settings.mods], trees)
    return {entry.path: entry for entry in mod_entries(applied, trees)}


def contents(layer: ModLayer, wheels: dict[str, Path]) -> dict[str, bytes]:
    return {
        path: read_content(entry.content) for path, entry in entries(layer, wheels).items() if entry.content is not None
    }


def stacked(layers: Sequence[ModLayer], wheels: dict[str, Path]) -> dict[str, bytes]:
    """Lay mod layers over the wheels' files, as an engine would."""
    tree: dict[str, bytes] = {}
    for file, path in wheels.items():
        for entry in wheel_entries(path, file, ENVIRONMENT):
            if entry.content is not None:
                tree[entry.path] = read_content(entry.content)
    for layer in layers:
        tree |= contents(layer, wheels)
    return tree


def assert_record_is_true(tree: dict[str, bytes], name: str) -> None:
    """Compare every row of a RECORD with the file that it speaks of, and every file with its row."""
    info = f"{SITE}/{name}.dist-info"
    rows = list(csv.reader(io.StringIO(tree[f"{info}/RECORD"].decode())))
    assert rows[-1] == [f"{name}.dist-info/RECORD", "", ""]
    for path, digest, size in rows[:-1]:
        parts = f"{SITE}/{path}".split("/")
        while ".." in parts:
            at = parts.index("..")
            del parts[at - 1 : at + 1]
        data = tree["/".join(parts)]
        assert (digest, size) == (record_hash(sha256_of(data)), str(len(data)))
    listed = {row[0] for row in rows}
    assert len(listed) == len(rows)
    package = name.split("-", maxsplit=1)[0]
    owned = {path.removeprefix(f"{SITE}/") for path in tree if path.startswith(f"{SITE}/{package}")}
    assert owned <= listed


def test_a_layer_holds_the_changed_files_the_record_and_the_note(wheels: dict[str, Path], mods: Path) -> None:
    data = inserting("m", "one = 1\n", licence="MIT")
    data["variants"][0]["changes"].append({"add": "vllm/new.py", "source": "new.py"})
    mod = make_mod(mods, data, {"new.py": "new = 1\n"})
    [layer] = layers(wheels, mod)
    assert {path: entry.mode for path, entry in entries(layer, wheels).items()} == dict.fromkeys(
        (f"{SITE}/vllm-1.5.dist-info/RECORD", f"{SITE}/vllm/new.py", f"{SITE}/vllm/x.py", RECORD_OF_MODS),
        0o644,
    )
    found = contents(layer, wheels)
    text = found[f"{SITE}/vllm/x.py"].decode()
    assert text == str(FILES["vllm/x.py"]).replace("one = 1\n", "one = 1\n# m\n")
    [entry] = json.loads(found[RECORD_OF_MODS])["mods"]
    assert entry == {
        "name": "m",
        "versions": ">=1,<2",
        "licence": "MIT",
        "distribution": "vllm",
        "digest": mod[0].digest(mod[1]),
        "files": {
            "vllm/new.py": {"before": None, "after": sha256_of(b"new = 1\n")},
            "vllm/x.py": {
                "before": sha256_of(str(FILES["vllm/x.py"]).encode()),
                "after": sha256_of(found[f"{SITE}/vllm/x.py"]),
            },
        },
    }
    assert_record_is_true(stacked([layer], wheels), "vllm-1.5")


def test_two_mods_on_one_file_make_a_chain(wheels: dict[str, Path], mods: Path) -> None:
    chain = layers(wheels, make_mod(mods, inserting("a", "one = 1\n")), make_mod(mods, inserting("b", "two = 2\n")))
    assert [layer.name for layer in chain] == ["a", "b"]
    first, second = (contents(layer, wheels) for layer in chain)
    assert first[f"{SITE}/vllm/x.py"].startswith(b"one = 1\n# a\ntwo = 2\nthree")
    assert second[f"{SITE}/vllm/x.py"].startswith(b"one = 1\n# a\ntwo = 2\n# b\nthree")
    one_note, two_notes = (json.loads(found[RECORD_OF_MODS])["mods"] for found in (first, second))
    assert [entry["name"] for entry in two_notes] == ["a", "b"]
    assert two_notes[0] == one_note[0]
    assert two_notes[1]["files"]["vllm/x.py"]["before"] == two_notes[0]["files"]["vllm/x.py"]["after"]
    for number in (1, 2):
        assert_record_is_true(stacked(chain[:number], wheels), "vllm-1.5")


def test_a_key_changes_with_its_mod_and_with_those_before_it_alone(wheels: dict[str, Path], mods: Path) -> None:
    def keys(folder: str, **texts: str) -> list[str]:
        chosen = []
        for name, anchor in (("a", "one = 1\n"), ("b", "two = 2\n"), ("c", "three = 3\n")):
            text = texts.get(name, f"# {name}\n")
            data = manifest(name, edit("vllm/x.py", anchor, after=text), checks=[has("vllm/x.py", text)])
            chosen.append(make_mod(mods / folder, data))
        return [layer.key for layer in layers(wheels, *chosen)]

    before = keys("before")
    assert keys("same") == before
    after = keys("after", b="# changed\n")
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, False]


def test_another_distribution_has_a_record_of_its_own(wheels: dict[str, Path], mods: Path) -> None:
    flash = inserting("a", "SLOW = 1\n", "flash/__init__.py", distribution="flash-thing")
    chain = layers(wheels, make_mod(mods, flash), make_mod(mods, inserting("b", "one = 1\n")))
    assert f"{SITE}/flash_thing-7.0.dist-info/RECORD" in entries(chain[0], wheels)
    assert f"{SITE}/vllm-1.5.dist-info/RECORD" in entries(chain[1], wheels)
    tree = stacked(chain, wheels)
    assert_record_is_true(tree, "vllm-1.5")
    assert_record_is_true(tree, "flash_thing-7.0")
    # A layer is made from what its mods change: the second one from both wheels.
    assert [len(layer.inputs) for layer in chain] == [1, 2]


def test_a_distribution_that_the_image_does_not_have_is_an_error(wheels: dict[str, Path], mods: Path) -> None:
    mod = make_mod(mods, inserting("m", "x", "other/x.py", distribution="other"))
    with raises("not-applicable", match="m changes other, which this image does not have") as caught:
        layers(wheels, mod)
    assert caught.value.where.startswith("mods/m/mod.yaml:")


def test_a_file_of_the_image_is_in_no_record(wheels: dict[str, Path], mods: Path) -> None:
    path = "/usr/share/imagefactory/mods/t.jinja"
    data = manifest("m", {"add": path, "source": "t"}, checks=[has(path, "hello")])
    [layer] = layers(wheels, make_mod(mods, data, {"t": "hello\n"}))
    assert sorted(entries(layer, wheels)) == [RECORD_OF_MODS, path.lstrip("/")]
