"""Every folder in mods/ is a mod that keeps the rules; adding a folder is enough to have it tested."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from imagefactory.locks.project import Project
from imagefactory.matrix.targets import select
from imagefactory.mods.choose import choose_mods
from imagefactory.mods.compatibility import refuse_idle_variants
from imagefactory.mods.readme_table import BEGIN, END
from imagefactory.plan.make import make_plan
from images.shipped.mods.load import load_mod, load_mods
from images.shipped.mods.manifest import STAGES, Mod
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.mods import table_in

ROOT = REPOSITORY / "mods"
FOLDERS = sorted(path for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._")
SHIPPED = [
    "dflash-split-backend",
    "eagle3-marker",
    "gb10-cutlass-fallback",
    "preserve-sm121a",
    "qwen35-chat-template",
    "turboquant-cuda-graph",
]

each_mod = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)


def test_the_promised_mods_are_there() -> None:
    assert set(SHIPPED) <= {folder.name for folder in FOLDERS}


@each_mod
def test_it_keeps_to_the_schema_and_editors_find_it(folder: Path) -> None:
    text = (folder / "mod.yaml").read_text("utf-8")
    assert text.startswith("# yaml-language-server: $schema=../../docs/schemas/mod.schema.json\n")
    schema = json.loads((REPOSITORY / "docs" / "schemas" / "mod.schema.json").read_text("utf-8"))
    jsonschema.validate(yaml.safe_load(text), schema, jsonschema.Draft202012Validator)


@each_mod
def test_it_is_named_after_its_folder_and_says_its_licence(folder: Path) -> None:
    mod = load_mod(folder)
    assert mod.name == folder.name
    assert mod.manifest.licence
    assert all(variant.source.licence for variant in mod.manifest.variants if variant.source)


@each_mod
def test_its_digests_are_stable(folder: Path) -> None:
    mod, again = load_mod(folder), load_mod(folder)
    for variant, same in zip(mod.manifest.variants, again.manifest.variants, strict=True):
        assert mod.digest(variant) == again.digest(same)
        carried = Mod.from_data(json.loads(json.dumps(mod.data(variant))))
        assert carried.digest(carried.manifest.variants[0]) == mod.digest(variant)


@each_mod
def test_it_says_something_about_every_version_and_nothing_about_none(folder: Path) -> None:
    mod, matrix = load_mod(folder), Project(REPOSITORY).matrix
    refuse_idle_variants([mod], matrix)
    for name, vllm in matrix.vllm.items():
        covered = any(mod.variant(vllm.version, stage) for stage in STAGES)
        retired = mod.is_upstream(vllm.version) or mod.reason_not_needed(vllm.version) is not None
        assert covered or retired, f"{mod.name} says nothing about {name}"


@each_mod
def test_every_file_next_to_it_is_used(folder: Path) -> None:
    mod = load_mod(folder)
    used = {name for variant in mod.manifest.variants for name in variant.own_files} | {"mod.yaml"}
    there = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there == used


@each_mod
def test_the_python_that_it_adds_is_python(folder: Path) -> None:
    for path in folder.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


@each_mod
def test_every_file_that_it_changes_is_checked(folder: Path) -> None:
    """A change that no check speaks of could vanish without anybody noticing."""
    mod = load_mod(folder)
    for variant in mod.manifest.variants:
        changed = {change.edit for change in variant.changes if hasattr(change, "edit")}
        assert changed <= {check.file for check in variant.checks}


def test_they_fit_together() -> None:
    assert list(load_mods(ROOT)) == [folder.name for folder in FOLDERS]


def test_every_mod_and_every_release_is_in_the_table() -> None:
    table = table_in(ROOT / "README.md")
    rows = re.findall(r"^\| \[([^]]+)\]\(([^)]+)\) \|", table, re.MULTILINE)
    assert [name for name, _ in rows] == [folder.name for folder in FOLDERS]
    assert all((ROOT / link).is_file() for _, link in rows)
    releases = [name for name, vllm in Project(REPOSITORY).matrix.vllm.items() if vllm.release]
    assert table.splitlines()[0] == f"| mod | {' | '.join(releases)} |"


def test_the_readme_has_its_marks_once() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert (text.count(BEGIN), text.count(END)) == (1, 1)


def test_a_mod_that_is_upstream_appears_as_such_in_the_plan() -> None:
    project = Project(REPOSITORY)
    [cell] = select(project.matrix, ["qwen3-coder-next-nvfp4@0.32.0/gb10"])
    plan = make_plan(project, cell)
    assert "eagle3-marker: upstream since 0.24.0" in plan.notes
    assert "eagle3-marker" not in [layer.name for layer in plan.layers if layer.kind == "mod"]


def test_an_older_version_gets_the_mod() -> None:
    project = Project(REPOSITORY)
    [cell] = select(project.matrix, ["qwen3-coder-next-nvfp4@0.20.2/gb10"])
    chosen = choose_mods(project.matrix, cell, project.mods)
    assert [mod.name for mod, _ in chosen.mods] == ["eagle3-marker", "gb10-cutlass-fallback"]
    assert chosen.mods[0][1].versions == ">=0.20,<0.24"
    assert any(note.startswith("preserve-sm121a: changes sources") for note in chosen.notes)


def test_gemma_with_a_drafter_gets_the_split_backend_in_the_one_version_that_needs_it() -> None:
    project = Project(REPOSITORY)
    for vllm, expected in (("0.20.2", True), ("0.24.0", False)):
        [cell] = select(project.matrix, [f"gemma4-31b@{vllm}/rtx5090"])
        chosen = choose_mods(project.matrix, cell, project.mods)
        assert ("dflash-split-backend" in [mod.name for mod, _ in chosen.mods]) is expected
