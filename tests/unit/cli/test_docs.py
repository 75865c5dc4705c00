"""The generated documentation is up to date: the README, the tables of settings, the JSON schemas."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from imagefactory.check.bench.published import load_published
from imagefactory.docs.generated import (
    DIGEST,
    NOT_MEASURED,
    SCHEMAS,
    glance,
    schemas,
    start_picture,
    with_tables,
    write_changed,
)
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import locked_plans, make_plan
from imagefactory.project.matrix import load_matrix
from imagefactory.project.project import Project, locked_cells
from imagefactory.project.targets import select_one
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.inv import Inv

README = (REPOSITORY / "README.md").read_text("utf-8")
MATRIX = (REPOSITORY / "matrix.yaml").read_text("utf-8")
FOLDER = REPOSITORY / "docs" / "schemas"


def validator(name: str) -> Any:
    return jsonschema.Draft202012Validator(json.loads((FOLDER / name).read_text("utf-8")))


def test_the_digest_in_the_readme_matches_this_commit() -> None:
    project = Project(REPOSITORY)
    plan = make_plan(project, select_one(project.matrix, ""))
    image = KnownLayers(project.known_layers).image(plan)
    assert image is not None, f"build {plan.target} and commit locks/layers.toml"
    assert DIGEST.findall(README) == [image.digest], "run `./inv docs`"


def test_the_tables_and_the_picture_of_starts_are_up_to_date() -> None:
    drawn = {REPOSITORY / "docs" / "pictures" / "starts.svg": start_picture(REPOSITORY)}
    assert write_changed({**with_tables(REPOSITORY), **drawn}, check=True) == [], "run `./inv docs`"


def test_the_pages_are_short() -> None:
    assert len(README.split()) < 900
    pages = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").rglob("*.md")]
    assert sum(len(page.read_text("utf-8").split()) for page in pages) <= 22_000


def test_readers_are_told_what_each_model_is_for_and_what_its_defaults_are() -> None:
    matrix, published = load_matrix(REPOSITORY / "matrix.yaml"), load_published(REPOSITORY)
    found = {name: glance(matrix, name, published) for name in matrix.models}
    assert [name for name, one in found.items() if not one.uses] == []
    default = found["gemma4-31b"]
    assert (default.tools, default.images, default.context, default.speed) == ("off", "off", "16K of 256K", "15")
    assert default.memory == "103 GB"
    assert found["qwen3.5-27b-nvfp4"].speed == "19-64"
    assert found["qwen3.5-122b-a10b-int4"].speed == "38"
    assert found["mistral-small-4-119b-nvfp4"].speed == "38 (with a drafter)", "nobody measured it without"
    assert found["gpt-oss-120b-dflash"].speed == NOT_MEASURED
    assert found["gpt-oss-20b"].slowest == 0, "measured without its drafter: no place among the fastest"
    assert found["deepseek-v4-flash"].memory == "109 GB each"
    for name, model in matrix.models.items():
        told = "uncensored" in found[name].tag
        assert told == ("uncensored" in (model.repo or "").lower()), f"`remark` of {name}"


def test_what_describes_a_model_to_people_changes_no_image(own_inv: Inv) -> None:
    before = own_inv("plan", "--json").stdout
    assert '"key"' in before
    described = "weights: bf16, good_for: [chat], reads_images: true, remark: a small one"
    memory = ", memory: {weights_gb: 60, kv_bytes_per_token: 150000, context: 131072"
    own_inv.checkout.edit_matrix("weights: bf16", described)
    assert own_inv("plan", "--json").stdout == before
    own_inv.checkout.edit_matrix(described, f"{described}{memory}}}")
    checked = own_inv("plan", "--json").stdout
    assert checked != before, "an image checks its memory"
    limit = ", active_gb: 3.5, experts: {gb: 58, chosen: 8, of: 128}"
    own_inv.checkout.edit_matrix(memory, f"{memory}{limit}")
    assert own_inv("plan", "--json").stdout == checked


def test_committed_schemas_are_valid_and_up_to_date_and_stale_ones_written(tmp_path: Path) -> None:
    assert write_changed(schemas(FOLDER), check=True) == []
    for name in SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(validator(name).schema)
    texts = schemas(tmp_path)
    assert [path.name for path in write_changed(texts, check=True)] == list(SCHEMAS)
    assert list(tmp_path.iterdir()) == []
    write_changed(texts)
    assert write_changed(texts, check=True) == []


def test_the_matrix_conforms_and_editors_see_typos() -> None:
    assert MATRIX.startswith("# yaml-language-server: $schema=docs/schemas/matrix.schema.json\n")
    matrix = validator("matrix.schema.json")
    matrix.validate(yaml.safe_load(MATRIX))
    with pytest.raises(jsonschema.ValidationError, match=r"wieghts|weights"):
        matrix.validate(yaml.safe_load(MATRIX.replace("    weights: ", "    wieghts: ", 1)))


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
def test_every_locked_plan_conforms(*, every: bool) -> None:
    plans, project = validator("plan.schema.json"), Project(REPOSITORY)
    alike = {(cell.server, cell.arch): cell for cell in locked_cells(project)}
    for plan in locked_plans(project) if every else [make_plan(project, cell) for cell in alike.values()]:
        plans.validate(plan.model_dump(mode="json"))
