"""The generated documentation is up to date: the README, the tables of settings, the JSON schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from imagefactory.cli.show.docs import DIGEST, SCHEMAS, schemas, with_tables, write_changed
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import locked_plans, make_plan
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from tasks import namespace
from tests.fixtures.checkouts import REPOSITORY

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


def test_the_tables_are_up_to_date() -> None:
    assert write_changed(with_tables(REPOSITORY), check=True) == [], "run `./inv docs`"


def test_the_readme_is_short_and_what_it_names_exists() -> None:
    assert len(README.split()) < 900
    links = re.findall(r"\]\((?!https?://)([^)#]+)", README)
    assert links
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
    shown = set(re.findall(r"\./inv ([a-z][a-z.]*)", README))
    assert shown
    assert sorted(shown - set(namespace.task_names)) == []


def test_committed_schemas_are_valid_and_up_to_date() -> None:
    assert write_changed(schemas(FOLDER), check=True) == []
    for name in SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(validator(name).schema)


def test_stale_schemas_are_listed_and_written(tmp_path: Path) -> None:
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


def test_every_locked_plan_conforms() -> None:
    plans = validator("plan.schema.json")
    for plan in locked_plans(Project(REPOSITORY)):
        plans.validate(plan.model_dump(mode="json"))
