"""`invoke recipes.import` and `recipes.export` from the command line."""

from __future__ import annotations

from pathlib import Path

import yaml

from imagefactory.errors.recipes import NothingToExportError, RecipeCommandError
from imagefactory.errors.system import FileMissingError
from tests.fixtures.inv import Inv

RECIPE = """\
recipe_version: "1"
name: Model
container: vllm-node
command: vllm serve somebody/model --max-model-len 4096
"""


def test_import_prints_the_entry_and_its_account(inv: Inv, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE, "utf-8")
    done = inv("recipes.import", str(recipe), "--name", "mine")
    assert done.returncode == 0, done.stderr
    [(name, entry)] = yaml.safe_load(done.stdout).items()
    assert (name, entry["repo"], entry["serve"]) == ("mine", "somebody/model", {"max_model_len": 4096})
    assert "container vllm-node" in done.stderr


def test_import_refuses_shell_and_missing_files(inv: Inv, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("4096", "4096 && reboot"), "utf-8")
    assert inv("recipes.import", str(recipe)).returncode == RecipeCommandError.exit_code
    assert inv("recipes.import", str(tmp_path / "none")).returncode == FileMissingError.exit_code


def test_export_without_a_known_image_writes_nothing(inv: Inv, tmp_path: Path) -> None:
    done = inv("recipes.export", str(tmp_path / "registry"), "--all")
    assert done.returncode == NothingToExportError.exit_code
    assert not (tmp_path / "registry").exists()
