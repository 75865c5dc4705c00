"""Checks of mods on versions report what the sources show, and mod authors get diffs."""

from pathlib import Path
from typing import Any

import pytest

from imagefactory.errors import ModError
from imagefactory.mods.authoring import changes, scaffold, source_lines, unfinished, unified_diff
from imagefactory.mods.compatibility import (
    BEGIN,
    END,
    check_mods,
    markdown,
    of_another_distribution,
    refuse_broken,
    write_table,
)
from imagefactory.mods.source_files import FolderSource
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import SourceLock
from imagefactory.project.project import Project
from images.shipped.mods.load import load_mod
from images.shipped.mods.manifest import Manifest, Mod
from tests.fixtures.failures import raises
from tests.fixtures.lock_files import locked_wheel, wheel_entry, write_wheel_lock
from tests.fixtures.mods import Data, edit, has, inserting, manifest, table_in, write_mod
from tests.fixtures.releases import Released
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory

INDENTED = "if True:\n    import warnings\n"
OLD = {"vllm/x.py": "class A(Base):\n    pass\n", "vllm/version.py": INDENTED}
NEW = {"vllm/x.py": "class A(Base, Mixin):\n    pass\n", "vllm/version.py": INDENTED}
LATER_FILES = {"vllm/later.py": "", "vllm_more/x.py": ""}
MIXIN = {"file": "vllm/x.py", "class": "A", "base": "Mixin"}
LATER = {"versions": ">=2", "reason": "it is there in another way"}
VERSION_EDIT = edit("vllm/version.py", "import warnings\n", after="# marked\n")


@pytest.fixture
def project(released: Released) -> Project:
    """Make a checkout with two releases, the newer one with another distribution, and a version before both."""
    made = released({"1.0": OLD, "2.0": NEW | LATER_FILES}, {"flash-thing": {"flash/x.py": "SLOW = 1\n"}})
    made.wheel_lock_path(Cell("tiny", "1.0", "cpu", "linux/amd64")).unlink()
    matrix, old = made.root / "matrix.yaml", "  old: {git: some/where, ref: old, counts_as: 0.5.0}\n"
    matrix.write_text(matrix.read_text().replace("  nightly:", f"{old}  nightly:"))
    return Project(made.root, made.store)


def marker(**more: Any) -> Data:
    """Describe a mod that 1.0 needs and 2.0 already contains."""
    change = edit("vllm/x.py", "class A(Base):", replace="class A(Base, Mixin):")
    return manifest("marker", change, checks=[MIXIN], **({"upstreamed_in": "2.0"} | more))


def cells(project: Project, *args: Any, **options: Any) -> dict[str, str]:
    return {result.version: str(result) for result in check_mods(project, *args, **options)}


def add(project: Project, data: Data, files: dict[str, str | bytes] | None = None) -> None:
    write_mod(project.root / "mods", data, files)


def test_wrong_claims_fail_and_name_the_line_in_mod_yaml(project: Project) -> None:
    add(project, marker(upstreamed_in=None))
    later = [{"vllm": ">=2"}]
    add(project, marker(upstreamed_in=None, versions=">=1", needed_when=later) | {"name": "wide"})
    results = {(result.mod, result.version): result for result in check_mods(project)}
    wide = results["wide", "2.0"]
    assert wide.status == "conflict"
    assert "An anchor of the mod wide (>=1) occurs 0 times in vllm/x.py" in wide.detail
    assert "mods/wide/mod.yaml:" in wide.detail
    assert results["marker", "2.0"].status == "not covered"
    with raises("false-claim") as caught:
        refuse_broken(list(results.values()))
    assert caught.value.where == "marker on 2.0, wide on 2.0"


def test_a_claim_to_be_upstream_too_early_and_a_missing_file_are_reported(project: Project) -> None:
    add(project, manifest("early", VERSION_EDIT, checks=[MIXIN], versions=">=0.5,<1", upstreamed_in="1.0"))
    add(project, manifest("gone", edit("vllm/gone.py", "x", after="!"), checks=[has("vllm/gone.py", "!")]))
    early, gone = check_mods(project, versions=["1.0"])
    assert (early.status, gone.status) == ("conflict", "file missing")
    assert "claimed to be upstream, but vllm/x.py: A has base Mixin: A has the bases Base" in early.detail
    assert "The mod gone (>=1,<2) changes vllm/gone.py, which does not exist" in gone.detail


def test_two_mods_on_the_same_lines_are_refused_before_any_image_is_built(project: Project) -> None:
    add(project, inserting("first", "class A(Base):\n"))
    add(project, inserting("second", "    pass\n"))
    add(project, inserting("third", "A(Base):\n    pass\n"))
    add(project, inserting("misfit", "class B"))
    results = {result.mod: result for result in check_mods(project, ["first", "third", "misfit"], ["1.0"])}
    assert results["first"].detail == (
        "The mods first and third touch the same lines. (vllm/x.py:1) "
        "first relies on lines 1-1, third relies on lines 1-2. Both are for tiny@1.0/cpu."
    )
    assert "occurs 0 times" in results["misfit"].detail  # not a word on the mods that it meets
    with raises("false-claim") as caught:
        refuse_broken(check_mods(project, ["third"], ["1.0"]))
    assert caught.value.where == "third on 1.0"
    assert "Merge them into one mod, or let `needed_when`" in caught.value.fix
    # Where another version needs it, it is in nobody's way.
    add(project, inserting("third", "A(Base):\n    pass\n", needed_when=[{"vllm": ">=2"}]))
    refuse_broken(check_mods(Project(project.root, project.store), ["first", "second", "third"], ["1.0"]))


def test_a_mod_that_undoes_another_and_conflicts_of_sources_are_found(project: Project) -> None:
    free = inserting("keeps-it-free", "    pass\n")
    free["variants"][0]["checks"].append({"file": "vllm/x.py", "lacks": "# louder"})
    add(project, free)
    add(project, inserting("louder", "class A(Base):\n"))
    for name in ("cmake", "more-cmake"):
        add(project, inserting(name, "set(ARCHS 1)\n", path="CMakeLists.txt", variant={"stage": "source"}))
    details = {result.mod: result.detail for result in check_mods(project, versions=["1.0"])}
    assert details["louder"].startswith("The mods keeps-it-free and louder do not fit together: A check of the mod")
    assert "The mods cmake and more-cmake touch the same lines. (CMakeLists.txt:1)" in details["cmake"]


def test_mod_is_checked_in_both_stages(project: Project) -> None:
    data = marker()
    source = {
        "versions": ">=1,<2",
        "stage": "source",
        "changes": [edit("CMakeLists.txt", "set(ARCHS 1)", replace="set(ARCHS 1 2)")],
        "checks": [has("CMakeLists.txt", "1 2")],
    }
    data["variants"].insert(0, source)
    add(project, data)
    [result] = check_mods(project, versions=["1.0"])
    assert (result.status, result.detail) == ("applies", ">=1,<2 (installed), >=1,<2 (source)")
    source["changes"] = [edit("CMakeLists.txt", "set(NOTHING)", after="!")]
    add(project, data)
    [result] = check_mods(Project(project.root, project.store), versions=["1.0"])
    assert result.status == "conflict"


def test_mod_of_another_distribution_is_checked_on_its_locked_wheel(project: Project) -> None:
    change = edit("flash/x.py", "SLOW = 1", replace="FAST = 1")
    add(
        project,
        manifest("m", change, checks=[has("flash/x.py", "FAST")], versions=">=1", distribution="flash-thing"),
    )
    SourceLock(made_from={}).write(project.locks / "2.0" / "a-lock-of-another-kind.toml")
    assert cells(project, versions=["2.0"]) == {"2.0": "applies"}
    with raises("source-missing", match=r"flash-thing for vLLM 1\.0 are not locked"):
        check_mods(project, versions=["1.0"])


def test_variant_without_a_version_in_the_matrix_is_refused(project: Project) -> None:
    data = marker()
    data["variants"].append({**data["variants"][0], "versions": ">=0.6,<0.9"})
    add(project, data)
    with raises("bad-mod-versions") as caught:
        check_mods(project, versions=["1.0"])
    assert "'>=0.6,<0.9'" in caught.value.why
    assert caught.value.where.startswith("mods/marker/mod.yaml:")


def test_source_tree_replaces_the_sources_of_a_version(project: Project, tmp_path: Path) -> None:
    add(project, marker())
    tree = tmp_path / "nightly"
    (tree / "vllm").mkdir(parents=True)
    (tree / "vllm" / "x.py").write_text(NEW["vllm/x.py"])
    assert cells(project, folder=FolderSource(tree)) == {"nightly": "upstream since 2.0"}
    (tree / "vllm" / "x.py").write_text(OLD["vllm/x.py"])
    assert cells(project, folder=FolderSource(tree)) == {"nightly": "conflict"}
    assert cells(project, versions=["1.0"], folder=FolderSource(tree)) == {"1.0": "applies"}


def test_mod_applies_or_is_upstream_as_the_sources_show_and_the_table_says_so(project: Project, tmp_path: Path) -> None:
    add(project, marker())
    results = check_mods(project)
    assert [str(result) for result in results] == ["applies", "upstream since 2.0"]
    refuse_broken(results)
    readme = tmp_path / "README.md"
    readme.write_text(f"# Mods\n\n{BEGIN}\nold\n{END}\n\nMore.\n")
    assert write_table(readme, results, project.mods)
    assert readme.read_text() == (
        f"# Mods\n\n{BEGIN}\n"
        "| mod | 1.0 | 2.0 |\n|---|---|---|\n"
        "| [marker](marker/mod.yaml) | applies | upstream since 2.0 |\n\n"
        f"{END}\n\nMore.\n"
    )
    assert table_in(readme) == markdown(results).strip()
    assert not write_table(readme, results, project.mods)
    with raises("unknown-name", match="Unknown mod 'maker'"):
        check_mods(project, ["maker"])
    with raises("unknown-name", match=r"Unknown version '1\.1'"):
        check_mods(project, versions=["1.1"])


def test_entries_that_were_not_checked_stay_in_the_table(project: Project, tmp_path: Path) -> None:
    add(project, marker(needed_when=[{"vllm": ">=2"}]) | {"name": "m"})
    add(project, marker())
    readme = tmp_path / "README.md"
    rows = "| [m](m/mod.yaml) | applies | not needed |\n| [gone](gone/mod.yaml) | applies | applies |"
    readme.write_text(
        f"{BEGIN}\n| mod | 1.0 | 2.0 |\n|---|---|---|\n{rows}\n\n- m on 2.0: it is there in another way.\n{END}\n"
    )
    fresh = Project(project.root, project.store)
    write_table(readme, check_mods(fresh, ["marker"]), fresh.mods)
    assert table_in(readme) == (
        "| mod | 1.0 | 2.0 |\n|---|---|---|\n"
        "| [m](m/mod.yaml) | applies | not needed |\n"
        "| [marker](marker/mod.yaml) | applies | upstream since 2.0 |\n\n"
        "- m on 2.0: it is there in another way."
    )


@pytest.mark.parametrize(
    ("key", "name", "fix"),
    [
        ("model", "tinny", "Did you mean tiny?"),
        ("arch", "gpu", "Did you mean cpu?"),
        ("version", "3.0", "Did you mean 2.0 or 1.0?"),
    ],
)
def test_a_mod_for_what_the_matrix_does_not_have_is_refused(project: Project, key: str, name: str, fix: str) -> None:
    add(project, marker(needed_when=[{"model": "t*"}, {key: name}]))
    with raises("bad-mod", match=f"is for the {key} {name!r}, which does not exist") as caught:
        check_mods(project)
    assert caught.value.where.startswith("mods/marker/mod.yaml:")
    assert caught.value.fix == fix


def test_a_mod_that_no_image_gets_is_said(project: Project) -> None:
    add(project, marker(needed_when=[{"model": "tiny", "vllm": "<2"}]))
    scaffold(project, "my-mod")
    found = list(unfinished(Project(project.root, project.store), []))
    assert [line.partition(";")[0] for line in found] == [
        "my-mod: no image gets it",
        "my-mod: `why` in mod.yaml has to name the issue or pull request",
    ]
    assert list(unfinished(Project(project.root, project.store), ["marker"])) == []


@pytest.mark.parametrize(
    ("change", "checks", "fix"),
    [
        (edit("vllm/x.py", "class A(Bose):", after="!"), [MIXIN], "Correct the anchor (`./inv mods.source"),
        (edit("vllm/x.py", "class A(Base):", replace="class A("), [MIXIN], "Correct the inserted text"),
        (VERSION_EDIT, [has("vllm/x.py", "pass")], "Set `upstreamed_in`, or add a check that fails without"),
        (VERSION_EDIT, [MIXIN], "Correct the change or the check"),
        (edit("vllm/gone.py", "x", after="!"), [MIXIN], "Add a variant for this version"),
    ],
)
def test_a_claim_that_does_not_hold_gets_its_own_advice(
    project: Project, change: Data, checks: list[Data], fix: str
) -> None:
    add(project, manifest("m", change, checks=checks))
    with raises("false-claim") as caught:
        refuse_broken(check_mods(project, versions=["1.0"]))
    assert caught.value.fix.startswith(fix)


def test_a_source_file_is_shown_and_searched_and_a_folder_listed(project: Project) -> None:
    def lines(*words: str) -> list[str]:
        return list(source_lines(project, *words))

    assert lines("vllm/x.py", "1.0")[:2] == ["    1: class A(Base):", "    2:     pass"]
    assert lines("vllm/x.py", "2.0", "Mix.n") == ["    1: class A(Base, Mixin):"]
    assert lines("vllm", "1.0") == ["vllm/version.py", "vllm/x.py"]
    assert lines("vllm/", "1.0", "import") == ["vllm/version.py:2:     import warnings"]
    assert lines("CMakeLists.txt", "1.0", "ARCHS") == ["    1: set(ARCHS 1)"]
    with raises("unknown-name", match=r"vLLM 1\.0 has no file vllm/envs/x\.py") as caught:
        lines("vllm/envs/x.py", "1.0")
    assert caught.value.fix == "Nearest: vllm/x.py."
    for path in ("vllm/later.py", "vllm_more", "vllm_more/"):
        with raises("unknown-name") as caught:
            lines(path, "1.0")
        assert caught.value.fix == "vLLM 2.0 has it: add `--vllm 2.0`."
    with raises("bad-option", match="not a regular expression"):
        lines("vllm/x.py", "1.0", "(")
    with raises("unknown-name", match="Unknown version"):
        lines("vllm/x.py", "3.0")


def test_scaffold_holds_on_every_version(project: Project) -> None:
    path = scaffold(project, "my-mod")
    assert path == project.root / "mods" / "my-mod" / "mod.yaml"
    assert load_mod(path.parent).name == "my-mod"
    results = check_mods(project, ["my-mod"])
    assert [result.status for result in results] == ["not needed", "applies"]
    with raises("bad-mod", match="The mod my-mod already exists"):
        scaffold(project, "my-mod")
    for name in ("../up", "My Mod", ""):
        with raises("bad-mod", match="is not a valid name for a mod"):
            scaffold(project, name)


def test_a_new_mod_can_begin_as_a_copy_of_another(project: Project) -> None:
    add(project, marker())
    path = scaffold(Project(project.root, project.store), "my-mod", "marker")
    copy = load_mod(path.parent)
    assert copy.name == "my-mod"
    original = load_mod(path.parents[1] / "marker")
    assert copy.manifest.model_copy(update={"name": "marker"}) == original.manifest
    with raises("unknown-name", match="Unknown mod 'nothing'"):
        scaffold(project, "other", "nothing")


def test_a_file_of_another_distribution_is_said_to_belong_to_it() -> None:
    data = manifest("m", edit("torch/version.py", "x", after="!"), checks=[MIXIN])
    mod = Mod(Manifest.model_validate(data), {})
    variant = mod.manifest.variants[0]
    what = f"The mod {mod.label(variant)} changes torch/version.py, which does not exist in this version."
    missing = ModError("mod-file", what, where="x", why="A mod can only change an existing file.", fix="Add a variant.")
    wheels = [wheel_entry(f"{name}-1.0-py3-none-any.whl", b"", 0) for name in ("vllm", "torch")]
    found = of_another_distribution(missing, [(mod, variant)], wheels)
    assert found.what.endswith("is of vllm, and torch/version.py belongs to torch.")
    assert of_another_distribution(missing, [(mod, variant)], wheels[:1]) is missing


def test_diff_shows_the_exact_change(project: Project) -> None:
    add(project, marker())
    assert unified_diff(changes(project, "marker", "1.0")) == (
        "--- a/vllm/x.py\n+++ b/vllm/x.py\n@@ -1,2 +1,2 @@\n-class A(Base):\n+class A(Base, Mixin):\n     pass\n"
    )
    with raises("not-applicable") as caught:
        changes(project, "marker", "2.0")
    assert caught.value.why == "marker: upstream since 2.0."


def test_mod_of_another_server_is_checked_on_that_servers_wheel(
    project: Project, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    matrix = project.root / "matrix.yaml"
    text = matrix.read_text().replace("\nmodels:\n", '\nsglang: {"0.5": {release: "0.5"}}\nmodels:\n')
    matrix.write_text(text.replace("{generated: tiny,", '{generated: tiny, sglang: ">=0",'))
    wheel = wheel_factory("sglang", "0.5", files={"sglang/x.py": "SLOW = 1\n"})
    simple_index.add(wheel)
    write_wheel_lock(project.locks, Cell("tiny", "sglang-0.5", "cpu", "linux/amd64"), [locked_wheel(wheel)])
    change = edit("sglang/x.py", "SLOW = 1", replace="FAST = 1")
    check = {"file": "sglang/x.py", "contains": "FAST"}
    add(project, marker())
    add(project, manifest("faster", change, checks=[check], distribution="sglang", versions=">=0"))
    both = Project(project.root, project.store)
    assert cells(both, ["faster"]) == {"1.0": "other server", "2.0": "other server", "sglang-0.5": "applies"}
    assert cells(both, ["marker"])["sglang-0.5"] == "other server"
    results = check_mods(both)
    refuse_broken(results)
    assert "| [faster](faster/mod.yaml) |  |  | applies |" in markdown(results)
