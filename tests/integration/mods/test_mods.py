"""Mods from the command line to the image, in a small factory and on the real sources."""

import ast
import json
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from packaging.version import Version

from imagefactory.compile.settings import load_settings
from imagefactory.mods.authoring import scaffold, unfinished
from imagefactory.mods.compatibility import check_mods, markdown
from imagefactory.mods.source_files import FACTS, Trees
from imagefactory.project.project import Project
from images.shipped.mods.apply import apply_mods
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.mods import Data, edit, has, manifest, table_in, write_mod
from tests.fixtures.platforms import wheel_tag
from tests.fixtures.small_factory import CELL, SmallFactory, noise, small_wheels, solid
from tests.fixtures.wheels import make_wheel

VLLM: dict[str, bytes | str] = {
    "vllm/__init__.py": "",
    "vllm/x.py": "one = 1\ntwo = 2\nthree = 3\n",
    "vllm/kernels.so": noise(3_000_000, 5),
}


def one(name: str, anchor: str, text: str = "", **more: Any) -> Data:
    text = text or f"# {name}\n"
    return manifest(name, edit("vllm/x.py", anchor, after=text), checks=[has("vllm/x.py", text)], **more)


@pytest.fixture
def factory(small_factory: SmallFactory) -> SmallFactory:
    """A small factory with a vLLM to change and mods of its own."""
    wheel = make_wheel(small_factory.links, "vllm", "1.0", files=VLLM, tag=wheel_tag())
    small_factory.lock_wheels([*small_wheels(small_factory.links), solid(wheel)])
    mods = small_factory.replace_mods()
    write_mod(mods, one("a-first", "one = 1\n"))
    write_mod(mods, one("b-second", "two = 2\n"))
    write_mod(mods, one("c-retired", "three = 3\n", versions=">=0.5,<1", upstreamed_in="1.0"))
    return small_factory


def change(factory: SmallFactory, name: str, old: str, new: str) -> None:
    path = factory.root / "mods" / name / "mod.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("anchor", "error", "where"),
    [
        ("no such line", "anchor-misfit", "mods/b-second/mod.yaml:11"),
        ("one = 1", "mod-conflict", "vllm/x.py:1"),
    ],
)
def test_mod_that_does_not_fit_stops_the_build_before_anything_is_built(
    factory: SmallFactory, anchor: str, error: str, where: str
) -> None:
    change(factory, "b-second", "two = 2", anchor)
    with raises(error) as caught:
        factory.build()
    assert caught.value.where == where
    assert not (factory.cache / "blobs").exists()


def test_changed_mod_rebuilds_only_its_own_layer(factory: SmallFactory) -> None:
    [before] = factory.build()
    assert before.plan.config.labels["imagefactory.mods"] == "a-first b-second"
    assert "mod c-retired: upstream since 1.0" in factory.invoke("plan", "--target", "tiny").stdout
    done = factory.invoke("plan", "--target", "tiny", "--diff")
    assert done.stdout.endswith(": nothing changed since the last build\n")
    change(factory, "b-second", "# b-second", "# b-changed")
    diff = factory.invoke("plan", "--target", "tiny", "--diff").stdout
    assert [line.split() for line in diff.splitlines()[2:]] == [["mod", "b-second", "mods/b-second", "changed"]]
    factory.watch.told.clear()
    [after] = factory.build()
    path = "opt/venv/lib/python3.11/site-packages/vllm/x.py"
    assert "mods/b-second" in factory.invoke("explain", path, "--target", "tiny").stdout
    assert {name for name, state in factory.watch.told if state != "cached"} == {"mod b-second"}
    assert after.image.digest != before.image.digest
    old = {blob.digest for blob in before.image.layers}
    new = [blob for blob in after.image.layers if blob.digest not in old]
    assert len(new) == 1
    assert sum(blob.size for blob in new) < 1_000_000 < sum(blob.size for blob in after.image.layers)


def test_other_words_a_new_mod_and_an_empty_cache_keep_the_layers_of_mods(
    factory: SmallFactory, tmp_path: Path
) -> None:
    [before] = factory.build()
    change(factory, "b-second", "A mod that exists for a test", "Better words for the same thing")
    shutil.rmtree(factory.cache)
    [again] = factory.build(output=tmp_path / "elsewhere")
    assert again.image.digest == before.image.digest
    write_mod(factory.root / "mods", one("z-last", "three = 3\n"))
    [after] = factory.build()
    old, new = (
        {layer.name: layer.key for layer in built.plan.layers if layer.kind == "mod"} for built in (before, after)
    )
    assert list(new) == ["a-first", "b-second", "z-last"]
    assert new.items() > old.items()


def test_changed_facts_in_the_cache_do_not_reach_an_image(factory: SmallFactory) -> None:
    """Checks of mods keep the text of sources there; builds read the locked wheels."""
    [before] = factory.build()
    shutil.rmtree(factory.cache / "layers")
    factory.project.known_layers.unlink()
    [wheel] = [wheel for wheel in factory.project.wheel_lock(CELL).wheels if wheel.name == "vllm"]
    facts = factory.project.store.facts(FACTS, wheel.sha256)
    facts.parent.mkdir(parents=True)
    facts.write_text(json.dumps({"vllm/x.py": "one = 1\ntwo = 2\nthree = 3\nevil = 4\n"}))
    [after] = factory.build()
    assert after.image == before.image


def test_mods_are_not_applied_to_a_changed_wheel_in_the_cache(factory: SmallFactory, tmp_path: Path) -> None:
    factory.build()
    evil = {**VLLM, "vllm/x.py": f"{VLLM['vllm/x.py']!s}evil = 4\n"}
    wheel = solid(make_wheel(tmp_path, "vllm", "1.0", files=evil, tag=wheel_tag()))
    [locked] = [wheel for wheel in factory.project.wheel_lock(CELL).wheels if wheel.name == "vllm"]
    cached = factory.project.store.download(locked.sha256)
    shutil.copyfile(wheel, cached)
    change(factory, "b-second", "# b-second", "# b-changed")
    record = factory.project.known_layers.read_bytes()
    with raises("damaged-cache") as caught:
        factory.build()
    assert caught.value.where == str(cached)
    assert factory.project.known_layers.read_bytes() == record


@pytest.fixture(scope="module")
def project() -> Project:
    return Project(REPOSITORY)


MATRIX = Project(REPOSITORY).matrix
OF_SGLANG = [f"sglang-{key}" for key in MATRIX.sglang]
RELEASES = [*dict.fromkeys(vllm.release for vllm in MATRIX.vllm.values() if vllm.release)]


@pytest.mark.network
def test_every_mod_holds_on_every_version_as_the_readme_shows(project: Project) -> None:
    results = check_mods(project)
    assert [(result.mod, result.version) for result in results] == list(product(project.mods, [*RELEASES, *OF_SGLANG]))
    assert [result for result in results if not result.holds] == []
    assert markdown(results).strip() == table_in(REPOSITORY / "mods" / "README.md")


@pytest.mark.network
def test_scaffold_and_the_example_in_the_readme_apply_to_the_default_version(project: Project, tmp_path: Path) -> None:
    for name in ("matrix.yaml", "locks"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    copy = Project(tmp_path, project.store)
    scaffold(copy, "my-mod")
    page = (REPOSITORY / "mods" / "README.md").read_text("utf-8")
    [example] = re.findall(r"A complete example:\n\n```yaml\n(.*?)```", page, re.DOTALL)
    folder = tmp_path / "mods" / "quiet-start"
    folder.mkdir(parents=True)
    (folder / "mod.yaml").write_text(example, "utf-8")
    results = {(result.mod, result.version): result for result in check_mods(copy)}
    default = project.matrix.defaults.vllm
    others = dict.fromkeys(RELEASES, "not needed") | dict.fromkeys(OF_SGLANG, "other server")
    statuses = {version: result.status for (mod, version), result in results.items() if mod == "my-mod"}
    assert statuses == others | {default: "applies"}
    assert results["quiet-start", default].status == "applies"
    assert all(result.holds for result in results.values())
    assert list(unfinished(copy, ["quiet-start"])) == []


@pytest.mark.network
@pytest.mark.parametrize("vllm", [name for name in RELEASES if Version(name) >= Version("0.20")])
def test_vllms_cmake_keeps_12_1a_only_with_the_mod(project: Project, cmake: Path, tmp_path: Path, vllm: str) -> None:
    mod = project.mods["preserve-sm121a"]
    variant = mod.variant(Version(vllm), "source")
    assert variant is not None
    tree = Trees(project).tree(mod, variant, vllm)
    before, functions = tree.read("CMakeLists.txt"), tree.read("cmake/utils.cmake")
    assert before is not None
    assert functions is not None
    [applied] = apply_mods([(mod, variant)], tree.read)
    (tmp_path / "utils.cmake").write_text(functions)
    for cuda in ("13.0", "13.4"):
        assert chosen_archs(cmake, before, tmp_path, cuda) == ("12.0", {"12.0f"})
        assert chosen_archs(cmake, applied.files["CMakeLists.txt"], tmp_path, cuda) == ("12.1a", {"12.1a"})


FLASH_ATTENTION = """\
set_property(SOURCE ${CMAKE_CURRENT_LIST_DIR}/a.cu APPEND PROPERTY COMPILE_OPTIONS -gencode arch=compute_80,code=sm_80)
add_custom_target(_vllm_fa2_C SOURCES ${CMAKE_CURRENT_LIST_DIR}/a.cu b.cpp)
"""
AROUND = """\
cmake_minimum_required(VERSION 3.26)
project(vllm NONE)
include(FetchContent)
set(VLLM_GPU_LANG CUDA)
set(CUDA_ARCHS "12.0a;12.1a")
include(vllm_flash_attn.cmake)
get_source_file_property(FLAGS ${vllm-flash-attn_SOURCE_DIR}/a.cu TARGET_DIRECTORY _vllm_fa2_C COMPILE_OPTIONS)
file(WRITE ${CMAKE_BINARY_DIR}/flags "${FLAGS}")
"""


@pytest.mark.network
@pytest.mark.parametrize("vllm", RELEASES)
def test_flash_attention_is_compiled_for_the_chips_and_installed_with_imports_that_work(
    project: Project, cmake: Path, tmp_path: Path, vllm: str
) -> None:
    mod = project.mods["native-fa2"]
    variant = mod.variant(Version(vllm), "source")
    assert variant is not None
    [applied] = apply_mods([(mod, variant)], Trees(project).tree(mod, variant, vllm).read)
    [source] = [item for item in load_settings(REPOSITORY).sources.values() if item.part == "vllm_flash_attn"]
    fetched = tmp_path / "flash-attention"
    (fetched / "flash_attn" / "cute").mkdir(parents=True)
    (fetched / "CMakeLists.txt").write_text(FLASH_ATTENTION)
    for name in ("a.cu", "b.cpp"):
        (fetched / name).touch()
    (fetched / "flash_attn" / "cute" / "a.py").write_text("from flash_attn.cute import b\n")
    (tmp_path / "CMakeLists.txt").write_text(AROUND)
    (tmp_path / "vllm_flash_attn.cmake").write_text(*applied.files.values())
    options = ["-G", "Unix Makefiles", "-DCMAKE_MAKE_PROGRAM=true", f"-D{source.variable}={fetched}"]
    subprocess.run([cmake, "-S", tmp_path, "-B", tmp_path / "build", *options], check=True)
    install = ["--component", "_vllm_fa4_cutedsl_C", "--prefix", f"{tmp_path}/installed"]
    subprocess.run([cmake, "--install", tmp_path / "build", *install], check=True)
    assert (tmp_path / "build" / "flags").read_text().split(";") == [
        "-gencode", "arch=compute_120a,code=sm_120a", "-gencode", "arch=compute_121a,code=sm_121a"
    ]  # fmt: skip
    cute = tmp_path / "installed" / "vllm" / "vllm_flash_attn" / "cute"
    assert not cute.is_symlink()
    assert (cute / "a.py").read_text() == "from vllm.vllm_flash_attn.cute import b\n"


@pytest.mark.network
@pytest.mark.parametrize(
    ("capability", "rotary", "tiles"),
    [((12, 1), 0, {"block_I": 32, "num_stages": 1, "threads": 128}), ((9, 0), 0, {}), ((12, 1), 64, {})],
)
def test_sparse_attention_without_rotary_positions_gets_small_tiles_on_12_x(
    project: Project, capability: tuple[int, int], rotary: int, tiles: dict[str, int]
) -> None:
    mod = project.mods["dsa-tiles-sm12x"]
    variant = mod.variant(Version("0.5.23"))
    assert variant is not None
    [applied] = apply_mods([(mod, variant)], Trees(project).tree(mod, variant, "sglang-0.5.23").read)
    [text] = applied.files.values()
    name = "tilelang_sparse_fwd"
    body: list[ast.stmt] = [node for node in ast.parse(text).body if getattr(node, "name", "") == name]
    kernels = {f"sparse_attention_fwd_kernel_v{number}": MagicMock() for number in (1, 2)}
    names: Data = {"torch": MagicMock(), "_is_hip": False, **kernels}
    names["torch"].cuda.get_device_capability.return_value = capability
    exec(compile(ast.Module(body, []), name, "exec"), names)  # noqa: S102 - the locked sources of SGLang
    tensors = {one: MagicMock(**{"dim.return_value": 3}) for one in ("q", "kv", "indices")}
    tensors["q"].shape, tensors["indices"].shape = (1, 32, 512 + rotary), (1, 1, 2048)
    names[name](**tensors, sm_scale=1.0)
    [called] = [kernel for kernel in kernels.values() if kernel.called]
    called.assert_called_once_with(32, 512, rotary, 2048, sm_scale=1.0, **tiles)


def chosen_archs(cmake: Path, cmake_lists: str, folder: Path, cuda: str) -> tuple[str, set[str]]:
    """Run vLLM's CMake functions for 12.1a; return the archs of general kernels, and those of FP8 and FP4 kernels."""
    at = cmake_lists.index("set(CUDA_SUPPORTED_ARCHS")
    supported = cmake_lists[cmake_lists.rindex("\nif(", 0, at) : cmake_lists.index("\nendif()", at) + len("\nendif()")]
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
    done = subprocess.run([cmake, "-P", "script.cmake"], cwd=folder, capture_output=True, text=True, check=True)
    general, *special = done.stderr.split()
    return general, set(special)
