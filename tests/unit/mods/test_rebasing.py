"""A mod that stops fitting is rebased where that is exact, and shown as a conflict where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imagefactory.mods.compatibility import check_mods
from imagefactory.mods.rebasing import advice, conflict_error, outdated, rebase, write
from imagefactory.mods.source_files import FolderSource
from imagefactory.project.project import Project
from tests.fixtures.failures import raises
from tests.fixtures.mods import Data, edit, has, manifest, write_mod
from tests.fixtures.releases import released
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory

BODY = "".join(f"step_{number} = {number}\n" for number in range(10))
OLD = {"vllm/__init__.py": "VERSION = 1\n", "vllm/x.py": f"import os\n{BODY}"}
MOVED = {**OLD, "vllm/x.py": f"import os\nimport sys\n{BODY}".replace("step_8", "renamed_8")}
NEAR = {**OLD, "vllm/x.py": OLD["vllm/x.py"].replace("step_4 = 4", "step_4 = f(4)")}
DONE = {**OLD, "vllm/x.py": OLD["vllm/x.py"].replace("step_5 = 5\n", "step_5 = 5\nadded = 1\n")}


@pytest.fixture
def project(
    tmp_path: Path, simple_index: SimpleIndex, wheel_factory: WheelFactory, monkeypatch: pytest.MonkeyPatch
) -> Project:
    monkeypatch.setenv("PIP_INDEX_URL", simple_index.url)
    releases = {"1.0": OLD, "2.0": MOVED, "3.0": NEAR, "4.0": DONE}
    return released(tmp_path, simple_index, wheel_factory, releases)


def mod(**more: Any) -> Data:
    # The anchor contains a line that 2.0 leaves alone and one that it does not need: so the mod stops fitting.
    change = edit("vllm/x.py", f"import os\n{BODY[: BODY.index('step_6')]}", after="added = 1\n")
    return manifest(
        "my-mod", change, checks=[has("vllm/x.py", "added = 1\n")], **({"versions": ">=1"} | more)
    )


def test_a_mod_that_stops_fitting_is_rebased_exactly(project: Project) -> None:
    write_mod(project.root / "mods", mod())
    assert outdated(project, "my-mod") == ["2.0", "3.0", "4.0"]
    done = rebase(project, "my-mod", "2.0")
    assert (done.outcome, done.base) == ("rebased", "1.0")
    file = project.root / "mods" / "my-mod" / "mod.yaml"
    file.write_text(f"# A comment that stays.\n{file.read_text('utf-8')}", "utf-8")
    write(Project(project.root, project.store), done)
    assert file.read_text("utf-8").startswith("# A comment that stays.\n")
    fresh = Project(project.root, project.store)
    assert [variant.versions for variant in fresh.mods["my-mod"].manifest.variants] == [">=1,<2.0", ">=2.0"]
    assert {one.version: one.status for one in check_mods(fresh)}["2.0"] == "applies"


def test_a_version_that_a_mod_does_not_cover_gets_a_range_up_to_the_next(project: Project) -> None:
    not_needed = [{"versions": ">=3", "reason": "it is not needed any more"}]
    write_mod(project.root / "mods", mod(versions=">=1,<2", not_needed=not_needed))
    write(project, rebase(project, "my-mod", "2.0"))
    fresh = Project(project.root, project.store)
    assert [variant.versions for variant in fresh.mods["my-mod"].manifest.variants] == [
        ">=1,<2",
        ">=2.0,<3.0",
    ]
    assert all(result.holds for result in check_mods(fresh))


@pytest.mark.parametrize(
    ("spared", "variant", "left"), [(">=2,<4", ">=2.0,<3.0", [">=3.0,<4"]), (">=2,<3", ">=2.0,<3", [])]
)
def test_a_version_is_taken_out_of_those_that_need_no_mod(
    project: Project, spared: str, variant: str, left: list[str]
) -> None:
    not_needed = [{"versions": spared, "reason": "it did not fit when it was imported"}]
    write_mod(project.root / "mods", mod(versions=">=1,<2", not_needed=not_needed))
    write(project, rebase(project, "my-mod", "2.0"))
    rebased = Project(project.root, project.store).mods["my-mod"].manifest
    assert [one.versions for one in rebased.variants] == [">=1,<2", variant]
    assert [entry.versions for entry in rebased.not_needed] == left


def test_a_conflict_is_shown_with_all_three_texts(tmp_path: Path, project: Project) -> None:
    write_mod(project.root / "mods", mod())
    (tmp_path / "tree" / "vllm").mkdir(parents=True)
    text = OLD["vllm/x.py"].replace("step_5 = 5", "step_5 = five()")
    (tmp_path / "tree" / "vllm" / "x.py").write_text(text)
    before = (project.root / "mods" / "my-mod" / "mod.yaml").read_text("utf-8")
    done = rebase(project, "my-mod", "nightly", folder=FolderSource(tmp_path / "tree"))
    assert (done.outcome, done.base) == ("conflict", "1.0")
    for part in ("vllm/x.py, line 8 of 1.0", "+added = 1", "step_5 = five()"):
        assert part in done.describe()
    with raises("not-rebasable", match="cannot be rebased onto nightly exactly"):
        write(project, done)
    assert (project.root / "mods" / "my-mod" / "mod.yaml").read_text("utf-8") == before
    assert "vllm/x.py:8" in str(conflict_error(done).where)


def test_a_version_that_has_the_change_or_fits_is_recognised(project: Project) -> None:
    write_mod(project.root / "mods", mod())
    assert rebase(project, "my-mod", "1.0").outcome == "fits"
    assert rebase(project, "my-mod", "4.0").outcome == "upstream"


def test_a_file_that_vanished_is_a_conflict(tmp_path: Path, project: Project) -> None:
    write_mod(project.root / "mods", mod())
    (tmp_path / "tree").mkdir()
    done = rebase(project, "my-mod", "nightly", folder=FolderSource(tmp_path / "tree"))
    assert (done.outcome, done.why) == ("conflict", "nightly removed vllm/x.py")


def test_advice_says_what_an_update_comes_to_or_why_that_is_not_known(
    tmp_path: Path, project: Project
) -> None:
    write_mod(project.root / "mods", mod())
    tree = tmp_path / "tree"
    (tree / "vllm").mkdir(parents=True)
    (tree / "vllm" / "x.py").write_text(MOVED["vllm/x.py"])
    assert "`./inv mods.update my-mod --vllm nightly` rebases it from 1.0 exactly" in advice(
        project, "my-mod", "nightly", FolderSource(tree)
    )
    (project.root / "locks" / "sources.toml").unlink()
    unknown = advice(Project(project.root, project.store), "my-mod", "nightly", FolderSource(tree))
    assert unknown.startswith("Whether `./inv mods.update my-mod` can rebase it is not known: ")
