"""A checkout with its images goes to another machine in parts, and comes out as it was."""

import hashlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imagefactory.assemble.images_here import built_layouts
from imagefactory.environment.setup import LockedSet
from imagefactory.offline import packing, unpack
from imagefactory.offline.packing import Cargo, pack
from imagefactory.offline.wheels import environment_wheels
from imagefactory.plan.known_layers import read_blob_record
from imagefactory.plan.make import make_plan
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from tests.fixtures.failures import raises
from tests.fixtures.platforms import PLATFORM
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory
from tests.fixtures.wheels import make_wheel

PART = 100_000


def git(root: Path, *words: str) -> None:
    by = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(root), *by, *words], check=True, capture_output=True)


def lock_environment(factory: SmallFactory, *pins: tuple[str, str, str, str]) -> None:
    """Lock wheels by name, version, tag and marker, and offer them in the configured folder."""
    text = "--only-binary :all:\n"
    for name, version, tag, marker in pins:
        wheel = make_wheel(factory.links, name, version, tag=tag, files={f"{name}.py": f"VERSION = {version!r}\n"})
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        text += f"{name}=={version}{marker and f' ; {marker}'} \\\n    --hash=sha256:{sha256}\n"
    for name in packing.SETS:
        path = LockedSet.of(factory.root, name).path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@dataclass
class Trip:
    """Two images of a small factory, packed, and the machine where they go."""

    factory: SmallFactory
    folder: Path
    there: Path

    def unpack(self) -> None:
        contents = json.loads((self.folder / unpack.CONTENTS).read_text())
        unpack.unpack_files(contents, self.folder, self.there / "checkout")

    @property
    def project(self) -> Project:
        # What the archive of the checkout would bring.
        if not (self.there / "checkout" / "matrix.yaml").exists():
            ignore = shutil.ignore_patterns("build", ".git")
            shutil.copytree(
                self.factory.root, self.there / "checkout", symlinks=True, ignore=ignore, dirs_exist_ok=True
            )
        return Project(self.there / "checkout", Store(self.there / "cache"))


@pytest.fixture
def committed(small_factory: SmallFactory) -> SmallFactory:
    lock_environment(small_factory, ("alpha", "1.0", "py3-none-any", ""))
    small_factory.build(CELL, SECOND)
    (small_factory.root / ".gitignore").write_text("/build/\n")
    git(small_factory.root, "init", "--quiet")
    git(small_factory.root, "add", "--all")
    git(small_factory.root, "commit", "--quiet", "--message", "all")
    return small_factory


@pytest.fixture
def trip(committed: SmallFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trip:
    folder, there = tmp_path / "parts", tmp_path / "there"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    cargo = Cargo([CELL, SECOND], also=[tmp_path / "model"], pythons=["3.12"])
    pack(committed.project, cargo, folder, PART, committed.said.append)
    monkeypatch.setenv("FACTORY_CACHE", str(there / "cache"))
    return Trip(committed, folder, there)


def test_images_arrive_as_if_they_were_built_there_with_shared_layers_once(trip: Trip) -> None:
    trip.unpack()
    before = built_layouts(trip.factory.project, [cell.full_target for cell in (CELL, SECOND)])
    after = built_layouts(trip.project, [cell.full_target for cell in (CELL, SECOND)])
    assert [image[1].manifest_digest() for image in after] == [image[1].manifest_digest() for image in before]
    for layer in make_plan(trip.project, CELL).layers:
        assert read_blob_record(layer.key, trip.project.store) == read_blob_record(
            layer.key, trip.factory.project.store
        )
    [first, second] = (image[1] for image in after)
    shared = first.layer_digests()[0]
    assert first.blob(shared).samefile(second.blob(shared))
    assert first.blob(shared).samefile(trip.project.store.blob(shared))
    sizes = [path.stat().st_size for path in sorted(trip.folder.glob("part-*"))]
    assert sum(sizes) < first.size() + second.size()
    assert set(sizes[:-1]) == {PART}
    assert (trip.there / "checkout" / unpack.BROUGHT / "model" / "config.json").read_text() == "{}"
    assert [path.name for path in (trip.there / "checkout" / unpack.WHEELS).iterdir()] == ["alpha-1.0-py3-none-any.whl"]


def test_missing_and_damaged_parts_are_named_and_the_next_run_goes_on(
    trip: Trip, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing, damaged = trip.folder / "part-0002", trip.folder / "part-0004"
    kept = {path: path.read_bytes() for path in (missing, damaged)}
    missing.unlink()
    damaged.write_bytes(b"x" + kept[damaged][1:])
    (trip.folder / "deep" / "er").mkdir(parents=True)
    (trip.folder / "part-0001").rename(trip.folder / "deep" / "er" / "part-0001")
    with pytest.raises(unpack.UnpackError) as caught:
        trip.unpack()
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert "part-0002: missing" in lines
    assert f"part-0004: damaged ({damaged})" in lines
    assert sum("part-" in line for line in lines) == 2
    for path, data in kept.items():
        path.write_bytes(data)
    wrote: list[unpack.Piece] = []
    put = unpack.put

    def noting(piece: unpack.Piece, *more: Any) -> None:
        wrote.append(piece)
        put(piece, *more)

    monkeypatch.setattr(unpack, "put", noting)
    trip.unpack()
    assert built_layouts(trip.project, [CELL.full_target])
    touched = {number for piece in wrote for number in piece.parts(PART)}
    assert all({1, 3} & {*piece.parts(PART)} for piece in wrote), f"files of other parts were written again: {touched}"


def test_an_image_whose_parts_are_there_can_be_used_before_the_others(
    trip: Trip, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unpack, "find_python", lambda _: "python3")
    monkeypatch.setattr(unpack, "set_up", lambda *_: None)
    contents = json.loads((trip.folder / unpack.CONTENTS).read_text())
    # The links of the small checkout are absolute, so its archive stays packed.
    for name, text in {unpack.COMMIT: contents["commit"], ".git/HEAD": ""}.items():
        (trip.there / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        (trip.there / "checkout" / name).write_text(text)
    assert list(contents["targets"]) == [CELL.full_target, SECOND.full_target]
    folders = {name: trip.there / "checkout" / "build" / name for name in contents["targets"].values()}
    first, second = (
        {
            number
            for piece in unpack.read_pieces(contents, trip.there / "checkout")
            if any(place.is_relative_to(folder) for place in piece.places)
            for number in piece.parts(PART)
        }
        for folder in folders.values()
    )
    late = trip.folder / unpack.PART.format(max(second - first) + 1)
    late.unlink()
    with pytest.raises(unpack.UnpackError, match=f"{late.name}: missing"):
        unpack.unpack(trip.folder, trip.there / "checkout")
    told = capsys.readouterr().out
    assert f"./inv load --target {CELL.full_target}\n" in told
    assert SECOND.full_target not in told


def test_the_archive_is_a_clone_of_the_commit_that_knows_its_origin(trip: Trip, tmp_path: Path) -> None:
    trip.unpack()
    git(trip.factory.root, "remote", "add", "origin", "https://github.com/owner/factory")
    archive = packing._archive(trip.factory.root, tmp_path / "scratch")
    shutil.unpack_archive(archive, tmp_path / "out")
    words = ["git", "-C", str(tmp_path / "out")]
    asked = [*words, "config", "remote.origin.url"], [*words, "status", "--porcelain"]
    done = [subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip() for ask in asked]
    assert done == ["https://github.com/owner/factory", ""]
    assert (tmp_path / "out" / "matrix.yaml").read_bytes() == trip.factory.matrix.read_bytes()


def test_changes_that_would_stay_behind_are_refused(committed: SmallFactory, tmp_path: Path) -> None:
    with committed.matrix.open("a") as file:
        file.write("# changed\n")
    with raises("uncommitted", "matrix.yaml"):
        pack(committed.project, Cargo([CELL], pythons=["3.12"]), tmp_path / "parts", PART, print)


def test_a_folder_with_other_files_is_refused_and_an_earlier_packing_replaced(trip: Trip) -> None:
    cargo = Cargo([CELL], pythons=["3.12"])
    before = len([*trip.folder.glob("part-*")])
    pack(trip.factory.project, cargo, trip.folder, 2 * PART, trip.factory.said.append)
    assert len([*trip.folder.glob("part-*")]) < before
    (trip.folder / "holiday.jpg").touch()
    with raises("output-unusable", "holiday.jpg"):
        pack(trip.factory.project, cargo, trip.folder, PART, trip.factory.said.append)


def test_another_machine_and_another_checkout_are_refused(trip: Trip, monkeypatch: pytest.MonkeyPatch) -> None:
    (trip.there / "full").mkdir(parents=True)
    (trip.there / "full" / "holiday.jpg").touch()
    monkeypatch.setattr(unpack, "find_python", lambda _: "python3")
    with pytest.raises(unpack.UnpackError, match="not empty"):
        unpack.unpack(trip.folder, trip.there / "full")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(unpack.UnpackError, match="this machine is riscv64"):
        unpack.unpack(trip.folder, trip.there / "checkout")


def test_wheels_are_those_of_the_other_python_and_machine(small_factory: SmallFactory) -> None:
    lock_environment(
        small_factory,
        ("alpha", "1.0", "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64", ""),
        ("beta", "1.0", "py3-none-any", "sys_platform == 'win32'"),
        ("gamma", "1.0", "py3-none-any", "python_full_version < '3.12.4'"),
        ("gamma", "2.0", "py3-none-any", "python_full_version >= '3.12.4'"),
    )
    # Same name and version, and not locked.
    make_wheel(small_factory.links, "alpha", "1.0", tag="cp312-cp312-manylinux_2_28_x86_64", files={"alpha.py": ""})
    project = small_factory.project
    wheels = environment_wheels(project.root, packing.SETS, ["3.12"], "linux/amd64", project.store)
    assert sorted(wheels) == [
        "alpha-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "gamma-1.0-py3-none-any.whl",  # which patch release is there is not known
        "gamma-2.0-py3-none-any.whl",
    ]
    with raises("no-environment-wheel", "alpha"):
        environment_wheels(project.root, packing.SETS, ["3.13"], "linux/amd64", project.store)


def test_images_for_two_machines_do_not_go_together() -> None:
    other = "linux/amd64" if PLATFORM == "linux/arm64" else "linux/arm64"
    with raises("bad-option", "different machines"):
        packing._only_platform([CELL, type(CELL)("tiny", "1.0", "cpu", other)])
