"""Every folder in mods/ follows the rules; a new folder is tested automatically."""

import ast
import json
import re
from itertools import product

import jsonschema
import pytest
import yaml

from imagefactory.mods.authoring import unfinished
from imagefactory.mods.choose import choose_mods, unknown_names
from imagefactory.mods.compatibility import BEGIN, END, refuse_idle_variants
from imagefactory.project.project import Project
from imagefactory.project.targets import select
from images.shipped.mods.load import load_mods
from images.shipped.mods.manifest import STAGES
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.mods import table_in

ROOT = REPOSITORY / "mods"
FOLDERS = sorted(path for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._")
MODS = load_mods(ROOT)


def test_every_mod_yaml_matches_the_schema_and_names_it_for_editors() -> None:
    schema = json.loads((REPOSITORY / "docs" / "schemas" / "mod.schema.json").read_text("utf-8"))
    for folder in FOLDERS:
        text = (folder / "mod.yaml").read_text("utf-8")
        assert text.startswith("# yaml-language-server: $schema=../../docs/schemas/mod.schema.json\n"), folder
        jsonschema.validate(yaml.safe_load(text), schema, jsonschema.Draft202012Validator)


def test_every_mod_covers_every_version_of_the_matrix() -> None:
    matrix = Project(REPOSITORY).matrix
    refuse_idle_variants(list(MODS.values()), matrix)
    for mod, (name, vllm) in product(MODS.values(), matrix.vllm.items()):
        covered = any(mod.variant(vllm.version, stage) for stage in STAGES)
        retired = mod.is_upstream(vllm.version) or mod.reason_not_needed(vllm.version) is not None
        assert covered or retired, f"{mod.name} says nothing about {name}"


def test_some_image_gets_every_mod_and_each_names_its_reason() -> None:
    project = Project(REPOSITORY)
    assert list(unknown_names(MODS.values(), project.matrix)) == []
    assert list(unfinished(project, [])) == []


def test_all_mods_load_and_every_file_of_a_mod_is_used_and_its_python_parses() -> None:
    assert list(MODS) == [folder.name for folder in FOLDERS]
    for folder in FOLDERS:
        variants = MODS[folder.name].manifest.variants
        used = {name for variant in variants for name in variant.own_files} | {"mod.yaml"}
        files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert {path.relative_to(folder).as_posix() for path in files} == used
        for path in files:
            if path.suffix == ".py":
                assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), path


def test_every_edited_file_is_checked() -> None:
    """A change that no check covers could be lost unnoticed."""
    for mod in MODS.values():
        for variant in mod.manifest.variants:
            changed = {change.edit for change in variant.changes if hasattr(change, "edit")}
            assert changed <= {check.file for check in variant.checks}, mod.name


def test_readme_has_one_table_of_every_mod_and_release() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert (text.count(BEGIN), text.count(END)) == (1, 1)
    table = table_in(ROOT / "README.md")
    rows = re.findall(r"^\| \[([^]]+)\]\(([^)]+)\) \|", table, re.MULTILINE)
    says = "Run `./inv mods.check --write`."
    assert [name for name, _ in rows] == [folder.name for folder in FOLDERS], says
    assert all((ROOT / link).is_file() for _, link in rows)
    matrix = Project(REPOSITORY).matrix
    releases = dict.fromkeys(vllm.release for vllm in matrix.vllm.values() if vllm.release)
    of_sglang = (f"sglang-{name}" for name in matrix.sglang)
    assert table.splitlines()[0] == f"| mod | {' | '.join([*releases, *of_sglang])} |", says


@pytest.mark.parametrize(
    ("target", "name", "versions"),
    [
        ("qwen3-coder-next-nvfp4@0.20.2/gb10", "eagle3-marker", ">=0.20,<0.24"),
        ("qwen3-coder-next-nvfp4@0.20.2/gb10", "gb10-cutlass-fallback", ">=0.19,<0.24"),
        ("qwen3-coder-next-nvfp4@0.20.2/gb10", "preserve-sm121a", "changes sources that are compiled"),
        ("qwen3-coder-next-nvfp4@0.32.0/gb10", "eagle3-marker", "upstream since 0.24.0"),
        ("gemma4-31b@0.20.2/b200", "dflash-split-backend", ">=0.20,<0.21"),
        ("gemma4-31b@0.28.0/b200", "dflash-split-backend", "not needed"),
    ],
)
def test_target_gets_the_mods_it_needs(target: str, name: str, versions: str) -> None:
    """The last column is the range of the variant, or the start of the note on why the mod is left out."""
    project = Project(REPOSITORY)
    [cell] = select(project.matrix, [target])
    chosen = choose_mods(project.matrix, cell, project.mods)
    picked = [variant.versions for mod, variant in chosen.mods if mod.name == name]
    notes = [note for note in chosen.notes if note.startswith(f"{name}: {versions}")]
    assert picked == [versions] or (picked, len(notes)) == ([], 1)
