"""Registries of recipes: complete, pinned, and never mixed with somebody's files."""

import json
import shlex
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from imagefactory.launch import prepare
from imagefactory.launch.preview import Preview
from imagefactory.launch.recipe_export import MANIFEST, RESERVED, Exported, published_registry, write_registry
from imagefactory.launch.recipes import settings_of_a_recipe
from imagefactory.lock.drift import models_made_from
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.serve.description import describe_cell
from imagefactory.project.locks.files import LockedRevision, ModelLock
from imagefactory.project.project import Project
from imagefactory.project.targets import select
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.failures import raises

PROJECT = Project(REPOSITORY)
TARGETS = [
    *("gemma4-31b", "gemma4-31b@sglang-0.5.21", "qwen3.5-35b-a3b-int4"),
    *("qwen3.6-27b-nvfp4@0.32.0/rtx5090", "deepseek-v4-flash"),
]
REGISTRY = "registry.example/me/images"
QUANTIZATIONS = {"none", "fp8", "nvfp4", "mxfp4", "auto-round", "awq"}
"""Names that sparkrun has for weights."""
BOTH = {"recipe_version", "name", "description", "model", "container", "defaults", "env", "command"}
KNOWN = {
    "1": BOTH | {"solo_only", "cluster_only"},
    "2": BOTH | {"model_revision", "runtime", "runtime_version", "min_nodes", "max_nodes", "metadata"},
}
"""The keys of each format that recipes of images may have."""


class Registry:
    """A registry that has all images but some."""

    def __init__(self, *missing: str) -> None:
        self.missing = missing

    def open(self, _: str, retry: object = None) -> AbstractContextManager[Self]:  # noqa: ARG002 - as the real one
        return nullcontext(self)

    def resolve(self, digest: str) -> str | None:
        return None if digest in self.missing else digest


def export(project: Project, targets: list[str], *missing: str) -> Exported:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FACTORY_REGISTRY", REGISTRY)
        patch.setattr(prepare, "Repository", Registry(*missing))
        return published_registry(project, select(project.matrix, targets), lambda _: None)


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return export(PROJECT, TARGETS).files


def read(files: dict[str, str], name: str) -> dict[str, Any]:
    document = yaml.safe_load(files[name])
    assert isinstance(document, dict)
    return document


def test_registry_has_a_manifest_and_a_recipe_for_each_target(files: dict[str, str]) -> None:
    assert set(files) == {
        MANIFEST,
        "recipes/gemma4-31b-v0.32.0.yaml",
        "recipes/gemma4-31b-sglang-0.5.21.yaml",
        "recipes/qwen3.5-35b-a3b-int4-v0.32.0.yaml",
        "recipes/deepseek-v4-flash-v0.32.0.yaml",
        "eugr/deepseek-v4-flash-v0.32.0.yaml",
        "eugr/gemma4-31b-v0.32.0.yaml",
        "eugr/qwen3.5-35b-a3b-int4-v0.32.0.yaml",
    }
    [registry] = read(files, MANIFEST)["registries"]
    assert set(registry) <= {"name", "description", "recipes", "tuning", "benchmarks", "enabled", "visible"}
    assert registry["recipes"] == "recipes"
    assert not registry["name"].startswith(RESERVED)


def test_recipes_name_images_by_the_recorded_digest(files: dict[str, str]) -> None:
    plan = make_plan(PROJECT, select(PROJECT.matrix, ["gemma4-31b"])[0])
    image = KnownLayers(PROJECT.known_layers).image(plan)
    assert image is not None
    for folder in ("recipes", "eugr"):
        document = read(files, f"{folder}/gemma4-31b-v0.32.0.yaml")
        assert document["container"] == f"{REGISTRY}@{image.digest}"


def test_recipes_have_only_what_the_launchers_know_and_start_the_server_by_its_program(files: dict[str, str]) -> None:
    for name in set(files) - {MANIFEST}:
        document = read(files, name)
        assert set(document) <= KNOWN[document["recipe_version"]]
        assert document.get("metadata", {}).get("quantization", "none") in QUANTIZATIONS
    # sparkrun appends `bash -c COMMAND` to the image, whose entry point hands programs through.
    for name, program in (("gemma4-31b-v0.32.0", "vllm"), ("gemma4-31b-sglang-0.5.21", "sglang")):
        command = read(files, f"recipes/{name}.yaml")["command"]
        assert shlex.split(command.replace("\\\n", " "))[:2] == [program, "serve"]


def test_a_start_without_a_process_of_its_own_runs_what_the_program_itself_would() -> None:
    for cell in select(PROJECT.matrix, TARGETS):
        served = describe_cell(PROJECT, cell)
        preview = Preview(PROJECT.root, served.description, served.model)
        given = settings_of_a_recipe(PROJECT.matrix, cell)
        start = preview.start(given)
        assert [*start.server.command, *start.command.arguments] == preview.command(given), cell


def test_a_recipe_for_two_sparks_leaves_the_flags_of_nodes_to_the_launcher(files: dict[str, str]) -> None:
    found = read(files, "recipes/deepseek-v4-flash-v0.32.0.yaml")
    assert (found["runtime"], found["min_nodes"], found["max_nodes"]) == ("vllm-distributed", 2, 2)
    assert (found["defaults"]["tensor_parallel"], "--nnodes" in found["command"]) == (2, False)
    assert read(files, "eugr/deepseek-v4-flash-v0.32.0.yaml")["cluster_only"]


def test_account_says_what_the_registry_lacks() -> None:
    account = export(PROJECT, TARGETS).account
    assert "not for the DGX Spark: qwen3.6-27b-nvfp4@0.32.0/rtx5090" in account
    [unpinned] = [line for line in account if line.startswith("without a pinned revision")]
    assert "google/gemma-4-31B-it" in unpinned


def test_model_and_drafter_are_pinned_by_revision(factory_checkout: Checkout) -> None:
    project = Project(factory_checkout.root)
    commits = {"google/gemma-4-31B-it": "a" * 40, "z-lab/gemma-4-31B-it-DFlash": "b" * 40}
    revisions = tuple(LockedRevision(repo=repo, commit=commit) for repo, commit in commits.items())
    lock = ModelLock(made_from=models_made_from(project.matrix), revisions=revisions)
    lock.write(ModelLock.path(project.locks))
    project = Project(factory_checkout.root)
    cell = select(project.matrix, ["gemma4-31b"])[0]
    # With other revisions, the image's last layer is another one.
    plan = make_plan(project, cell)
    known = KnownLayers(project.known_layers)
    blob = next(iter(known.layers.values())).blob
    known.add({plan.layers[-1].key: ("model gemma4-31b", blob)})
    exported = export(project, ["gemma4-31b"])
    document = read(exported.files, "recipes/gemma4-31b-v0.32.0.yaml")
    assert document["model_revision"] == "a" * 40
    words = shlex.split(document["command"].replace("\\\n", " "))
    assert words[words.index("--revision") + 1] == "a" * 40
    assert json.loads(words[words.index("--speculative-config") + 1])["revision"] == "b" * 40


def test_target_without_an_image_for_a_spark_gives_no_registry() -> None:
    with raises("nothing-to-export", match="No recipe"):
        export(PROJECT, ["tiny", "gemma4-31b@0.20.2/b200"])


def test_a_recipe_names_no_image_that_was_never_published() -> None:
    [cell] = select(PROJECT.matrix, ["gemma4-31b"])
    image = KnownLayers(PROJECT.known_layers).image(make_plan(PROJECT, cell))
    assert image is not None
    exported = export(PROJECT, ["gemma4-31b", "deepseek-v4-flash"], image.digest)
    assert "not published (`./inv publish`): gemma4-31b@0.32.0/gb10" in exported.account
    assert {name for name in exported.files if "gemma" in name} == set()
    assert "recipes/deepseek-v4-flash-v0.32.0.yaml" in exported.files
    with raises("nothing-to-export", match="No recipe") as refusal:
        export(PROJECT, ["gemma4-31b"], image.digest)
    assert "not published" in refusal.value.why


FILES = {MANIFEST: "# Made by `./inv recipes.export`; a later export replaces the files beside it.\n"}


def test_later_export_replaces_an_earlier_one(tmp_path: Path) -> None:
    write_registry({**FILES, "recipes/old.yaml": "1", "recipes/same.yaml": "1"}, tmp_path)
    (tmp_path / "README.md").write_text("mine", "utf-8")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("mine", "utf-8")
    write_registry({**FILES, "recipes/same.yaml": "2"}, tmp_path)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {MANIFEST, "recipes/same.yaml", "README.md", ".git/HEAD"}
    assert (tmp_path / "recipes" / "same.yaml").read_text("utf-8") == "2"


@pytest.mark.parametrize("name", ["notes.txt", "recipes/mine.yaml", MANIFEST])
def test_export_leaves_the_folders_of_others_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine", "utf-8")
    with raises("output-unusable", match="not a registry"):
        write_registry(FILES, tmp_path)
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]
    assert path.read_text("utf-8") == "mine"
