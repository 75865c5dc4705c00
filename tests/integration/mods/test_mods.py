"""Mods from the command line to the image: on a small factory, on the real sources, and in containers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from imagefactory.build.assemble import Built
from imagefactory.errors.mods import AnchorError, ModClaimError, ModConflictError, ModNotApplicableError
from imagefactory.locks.project import Project
from imagefactory.mods.authoring import changes, scaffold, unified_diff
from imagefactory.mods.compatibility import check_mods
from imagefactory.mods.readme_table import markdown
from imagefactory.mods.trees import Trees
from imagefactory.plan.plan import Layer
from images.shipped.mods.apply import apply_mods
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.mods import Data, edit, has, line_of, manifest, table_in, write_mod
from tests.fixtures.platforms import wheel_tag
from tests.fixtures.small_factory import CELL, SmallFactory, noise, small_wheels, solid
from tests.fixtures.wheels import make_wheel

VLLM: dict[str, bytes | str] = {
    "vllm/__init__.py": "",
    "vllm/x.py": "one = 1\ntwo = 2\nthree = 3\n",
    "vllm/kernels.so": noise(3_000_000, 5),
}


# --- a small factory -----------------------------------------------------------------------------


def one(name: str, anchor: str, text: str = "", **more: Any) -> Data:
    text = text or f"# {name}\n"
    return manifest(name, edit("vllm/x.py", anchor, after=text), checks=[has("vllm/x.py", text)], **more)


@pytest.fixture
def factory(small_factory: SmallFactory) -> SmallFactory:
    """A factory whose one version has a vLLM to change, and mods of its own."""
    wheel = make_wheel(small_factory.links, "vllm", "1.0", files=VLLM, tag=wheel_tag())
    small_factory.lock_wheels([*small_wheels(small_factory.links), solid(wheel)])
    matrix = small_factory.root / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("weights: dummy, mods: none", "weights: dummy, mods: auto"))
    mods = small_factory.root / "mods"
    mods.unlink()
    write_mod(mods, one("a-first", "one = 1\n"))
    write_mod(mods, one("b-second", "two = 2\n"))
    write_mod(mods, one("c-retired", "three = 3\n", versions=">=0.5,<1", upstreamed_in="1.0"))
    return small_factory


def invoke(factory: SmallFactory, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        factory.command(*arguments), env=factory.environment(), capture_output=True, text=True, check=False
    )


def change(factory: SmallFactory, name: str, old: str, new: str) -> Path:
    path = factory.root / "mods" / name / "mod.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def mod_layers(built: Built) -> list[Layer]:
    return [layer for layer in built.plan.layers if layer.kind == "mod"]


def test_a_wrong_anchor_stops_the_build_and_names_the_line(factory: SmallFactory) -> None:
    path = change(factory, "b-second", "two = 2", "no such line")
    done = invoke(factory, "build", "--target", "tiny")
    assert done.returncode == AnchorError.exit_code
    assert done.stdout == ""
    assert "An anchor of the mod b-second (>=1,<2) occurs 0 times in vllm/x.py." in done.stderr
    assert f"where: mods/b-second/mod.yaml:{line_of(path, 'edit: vllm/x.py')}" in done.stderr
    assert "Traceback" not in done.stderr
    # It stopped before anything was built.
    assert not (factory.cache / "blobs").exists()


def test_two_mods_on_the_same_lines_stop_the_build_before_anything_is_built(factory: SmallFactory) -> None:
    change(factory, "b-second", "two = 2", "one = 1")
    done = invoke(factory, "build", "--target", "tiny")
    assert done.returncode == ModConflictError.exit_code
    assert "The mods a-first and b-second touch the same lines." in done.stderr
    assert not (factory.cache / "blobs").exists()


def test_a_mod_that_is_named_and_does_not_apply_stops_the_plan(factory: SmallFactory) -> None:
    matrix = factory.root / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("mods: auto", "mods: [c-retired]"))
    done = invoke(factory, "plan", "--target", "tiny")
    assert done.returncode == ModNotApplicableError.exit_code
    assert "c-retired: upstream since 1.0." in done.stderr


def test_a_mod_that_is_upstream_appears_as_such_in_the_plan(factory: SmallFactory) -> None:
    done = invoke(factory, "plan", "--target", "tiny")
    assert done.returncode == 0, done.stderr
    assert "mod c-retired: upstream since 1.0" in done.stdout
    plan = json.loads(invoke(factory, "plan", "--target", "tiny", "--json").stdout)["plans"][0]
    assert plan["notes"] == ["c-retired: upstream since 1.0"]
    assert [layer["name"] for layer in plan["layers"] if layer["kind"] == "mod"] == ["a-first", "b-second"]
    assert plan["config"]["labels"]["imagefactory.mods"] == "a-first b-second"


def test_changing_one_mod_rebuilds_one_layer_and_the_images_differ_by_little(factory: SmallFactory) -> None:
    [before] = factory.build()
    assert invoke(factory, "plan", "--target", "tiny", "--diff").stdout.splitlines()[1] == (
        "nothing changed since the last build"
    )
    change(factory, "b-second", "# b-second", "# b-changed")
    diff = invoke(factory, "plan", "--target", "tiny", "--diff").stdout
    assert [line.split() for line in diff.splitlines()[2:]] == [
        ["mod", "b-second", "mods/b-second", "changed"]
    ]
    factory.watch.told.clear()
    [after] = factory.build()
    assert {name for name, state in factory.watch.told if state != "cached"} == {"mod b-second"}
    assert after.image.digest != before.image.digest
    old = {blob.digest for blob in before.image.layers}
    new = [blob for blob in after.image.layers if blob.digest not in old]
    assert len(new) == 1
    assert sum(blob.size for blob in new) < 1_000_000 < sum(blob.size for blob in after.image.layers)


def test_prose_rebuilds_nothing(factory: SmallFactory) -> None:
    [before] = factory.build()
    change(factory, "b-second", "A mod that exists for a test", "Better words for the same thing")
    [after] = factory.build()
    assert after.image.digest == before.image.digest


def test_a_mod_that_changes_another_wheel_file_leaves_earlier_mods_alone(factory: SmallFactory) -> None:
    [before] = factory.build()
    write_mod(factory.root / "mods", one("z-last", "three = 3\n"))
    [after] = factory.build()
    assert [layer.key for layer in mod_layers(after)[:2]] == [layer.key for layer in mod_layers(before)]
    assert [layer.name for layer in mod_layers(after)] == ["a-first", "b-second", "z-last"]


def test_what_the_image_holds_is_owned_by_the_mod(factory: SmallFactory) -> None:
    factory.build()
    path = "opt/venv/lib/python3.11/site-packages/vllm/x.py"
    done = invoke(factory, "explain", path, "--target", "tiny")
    assert done.returncode == 0, done.stderr
    assert "mods/b-second" in done.stdout


def test_a_new_mod_is_made_and_a_name_that_is_taken_is_refused(factory: SmallFactory) -> None:
    made = invoke(factory, "mods.new", "my-mod")
    assert (made.returncode, made.stdout) == (0, "mods/my-mod/mod.yaml\n")
    assert invoke(factory, "mods.new", "my-mod").returncode != 0


def test_the_same_mods_give_the_same_image_on_another_machine(factory: SmallFactory, tmp_path: Path) -> None:
    [here] = factory.build()
    shutil.rmtree(factory.cache)
    [there] = factory.build(output=tmp_path / "elsewhere")
    assert there.image.digest == here.image.digest
    assert CELL.model == here.plan.model


# --- the real sources ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project() -> Project:
    return Project(REPOSITORY)


RELEASES = [name for name, vllm in Project(REPOSITORY).matrix.vllm.items() if vllm.release]
MODS = sorted(Project(REPOSITORY).mods)


@pytest.mark.network
@pytest.mark.parametrize("name", MODS)
def test_every_mod_holds_on_every_version(project: Project, name: str) -> None:
    """Its checks are false in the untouched sources and true afterwards, or it is upstream or not needed."""
    results = check_mods(project, [name])
    assert [result.vllm for result in results] == RELEASES
    assert [result for result in results if not result.holds] == []


@pytest.mark.network
def test_the_table_in_the_readme_is_true(project: Project) -> None:
    """Where a plugin's git source is not on this machine, its cells are taken on trust."""
    results = check_mods(project)
    written = table_in(REPOSITORY / "mods" / "README.md").splitlines()
    fresh = [line for line in markdown(results).strip().splitlines() if "is not on this machine" not in line]
    assert len(fresh) == len(written)
    for now, then in zip(fresh, written, strict=True):
        assert re.fullmatch(re.escape(now).replace(re.escape("out of reach"), "[^|]+"), then), (now, then)


FACTS = {
    # Section H of the facts: applied, upstream, not there.
    ("eagle3-marker", "0.19.1"): (">=0.19,<0.20", 4),
    ("eagle3-marker", "0.20.2"): (">=0.20,<0.24", 2),
    ("gb10-cutlass-fallback", "0.19.1"): (">=0.19,<0.24", 8),
    ("gb10-cutlass-fallback", "0.20.2"): (">=0.19,<0.24", 8),
    ("dflash-split-backend", "0.20.2"): (">=0.20,<0.21", 5),
}


@pytest.mark.network
@pytest.mark.parametrize(("name", "vllm"), FACTS)
def test_a_change_has_the_size_that_the_facts_give(project: Project, name: str, vllm: str) -> None:
    versions, size = FACTS[name, vllm]
    variant = project.mods[name].variant(Version(vllm))
    assert variant is not None
    assert variant.versions == versions
    found = [change for change in changes(project, name, vllm) if not change.path.startswith("csrc/")]
    added = [line for line in unified_diff(found).splitlines() if line.startswith("+") and line[:3] != "+++"]
    assert len([line for line in added if line.strip("+ ")]) == size


@pytest.mark.network
def test_two_lines_alone_would_apply_to_0_19_and_break_it(project: Project) -> None:
    """The later form fits 0.19 textually; its check on the inner class is what tells."""
    mod = project.mods["eagle3-marker"]
    variant = mod.variant(Version("0.20.2"))
    assert variant is not None
    tree = Trees(project).tree(mod, variant, "0.19.1")
    with pytest.raises(Exception, match="does not hold") as caught:
        apply_mods([(mod, variant)], tree.read)
    assert "Qwen3NextModel has base EagleModelMixin" in str(caught.value)


@pytest.mark.network
def test_what_mods_new_makes_works_on_the_default_version(project: Project, tmp_path: Path) -> None:
    for name in ("matrix.yaml", "locks"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    copy = Project(tmp_path, project.store)
    scaffold(copy, "my-mod")
    statuses = {result.vllm: result.status for result in check_mods(copy)}
    default = project.matrix.defaults.vllm
    assert statuses == {name: "applies" if name == default else "not needed" for name in RELEASES}


@pytest.mark.network
def test_the_whole_table_comes_from_the_cache_the_second_time(project: Project) -> None:
    """The sources of a release are read once; nothing of the network is needed afterwards."""
    first = check_mods(project)
    program = (
        "import socket, sys\n"
        "def refuse(*_): raise AssertionError('the network was asked')\n"
        "socket.socket.connect = refuse\n"
        "from pathlib import Path\n"
        "from imagefactory.locks.project import Project\n"
        "from imagefactory.mods.compatibility import check_mods\n"
        "print(*(str(result) for result in check_mods(Project(Path(sys.argv[1])))), sep='\\n')\n"
    )
    command = [sys.executable, "-c", program, str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(result) for result in first]


@pytest.mark.network
def test_the_command_fails_when_a_claim_does_not_hold_and_shows_the_place(factory_checkout: Checkout) -> None:
    good = factory_checkout.invoke("mods.check", "--name", "eagle3-marker", "--json")
    assert good.returncode == 0, good.stderr
    assert [result["status"] for result in json.loads(good.stdout)] == [
        "applies",
        "applies",
        *["upstream"] * 3,
    ]
    path = factory_checkout.root / "mods" / "eagle3-marker" / "mod.yaml"
    path.write_text(
        path.read_text()
        .replace('upstreamed_in: "0.24.0"', 'upstreamed_in: "0.28.0"')
        .replace("<0.24", "<0.28")
    )
    bad = factory_checkout.invoke("mods.check", "--name", "eagle3-marker", "--markdown")
    assert bad.returncode == ModClaimError.exit_code
    assert "| applies | applies | conflict | upstream since 0.28.0 | upstream since 0.28.0 |" in bad.stdout
    assert "eagle3-marker on 0.24.0: " in bad.stderr
    assert "mods/eagle3-marker/mod.yaml:" in bad.stderr


@pytest.mark.network
@pytest.mark.parametrize("cuda", ["13.0", "13.4"])
@pytest.mark.parametrize("vllm", [name for name in RELEASES if Version(name) >= Version("0.20")])
def test_vllms_own_cmake_keeps_12_1a_with_the_mod_and_rewrites_it_without(
    project: Project, cmake: Path, tmp_path: Path, vllm: str, cuda: str
) -> None:
    mod = project.mods["preserve-sm121a"]
    variant = mod.variant(Version(vllm), "source")
    assert variant is not None
    tree = Trees(project).tree(mod, variant, vllm)
    before, functions = tree.read("CMakeLists.txt"), tree.read("cmake/utils.cmake")
    assert before is not None
    assert functions is not None
    [applied] = apply_mods([(mod, variant)], tree.read)
    (tmp_path / "utils.cmake").write_text(functions)
    assert chosen_archs(cmake, before, tmp_path, cuda) == ("12.0", {"12.0f"})
    assert chosen_archs(cmake, applied.files["CMakeLists.txt"], tmp_path, cuda) == ("12.1a", {"12.1a"})


def chosen_archs(cmake: Path, cmake_lists: str, folder: Path, cuda: str) -> tuple[str, set[str]]:
    """Run the real functions for TORCH_CUDA_ARCH_LIST=12.1a: what general kernels get, and what FP8 and FP4 get."""
    at = cmake_lists.index("set(CUDA_SUPPORTED_ARCHS")
    supported = cmake_lists[
        cmake_lists.rindex("\nif(", 0, at) : cmake_lists.index("\nendif()", at) + len("\nendif()")
    ]
    calls = re.findall(r'cuda_archs_loose_intersection\(\s*\w+\s+"([^"]*12\.0f[^"]*)"', cmake_lists)
    assert calls
    script = [
        "cmake_minimum_required(VERSION 3.20)",
        "include(utils.cmake)",
        f"set(CMAKE_CUDA_COMPILER_VERSION {cuda})",
        supported,
        'cuda_archs_loose_intersection(CUDA_ARCHS "${CUDA_SUPPORTED_ARCHS}" "12.1a")',
        'message("${CUDA_ARCHS}")',
    ]
    for call in calls:
        script += [f'cuda_archs_loose_intersection(FOUND "{call}" "${{CUDA_ARCHS}}")', 'message("${FOUND}")']
    (folder / "script.cmake").write_text("\n".join(script))
    done = subprocess.run(
        [cmake, "-P", "script.cmake"], cwd=folder, capture_output=True, text=True, check=True
    )
    general, *special = done.stderr.split()
    return general, set(special)
