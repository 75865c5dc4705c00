"""The committed JSON schemas are up to date, and what we write and read keeps to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from imagefactory.commands.show.docs import SCHEMAS, schemas, write_changed
from imagefactory.locks.project import Project
from imagefactory.matrix.targets import select
from imagefactory.plan.make import make_plan
from tests.fixtures.checkouts import REPOSITORY

FOLDER = REPOSITORY / "docs" / "schemas"


def schema(name: str) -> dict[str, Any]:
    content = json.loads((FOLDER / name).read_text("utf-8"))
    assert isinstance(content, dict)
    return content


def test_committed_schemas_are_up_to_date() -> None:
    assert write_changed(schemas(FOLDER), check=True) == []


def test_stale_schemas_are_listed_and_written(tmp_path: Path) -> None:
    texts = schemas(tmp_path)
    assert [path.name for path in write_changed(texts, check=True)] == list(SCHEMAS)
    assert list(tmp_path.iterdir()) == []
    write_changed(texts)
    assert write_changed(texts, check=True) == []


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_a_schema_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))


def test_the_committed_matrix_keeps_to_its_schema() -> None:
    matrix = yaml.safe_load((REPOSITORY / "matrix.yaml").read_text("utf-8"))
    jsonschema.validate(matrix, schema("matrix.schema.json"), jsonschema.Draft202012Validator)


def test_an_editor_finds_the_schema_and_sees_a_typo() -> None:
    text = (REPOSITORY / "matrix.yaml").read_text("utf-8")
    assert text.startswith("# yaml-language-server: $schema=docs/schemas/matrix.schema.json\n")
    matrix = yaml.safe_load(text.replace("    weights: mxfp4", "    wieghts: mxfp4"))
    with pytest.raises(jsonschema.ValidationError, match=r"wieghts|weights"):
        jsonschema.validate(matrix, schema("matrix.schema.json"), jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    "target", ["gemma4-31b", "gemma4-31b@0.28.0", "gpt-oss-120b/rtx5090", "tiny/cpu/amd64"]
)
def test_plans_keep_to_their_schema(target: str) -> None:
    project = Project(REPOSITORY)
    for cell in select(project.matrix, [target]):
        plan = make_plan(project, cell).model_dump(mode="json")
        jsonschema.validate(plan, schema("plan.schema.json"), jsonschema.Draft202012Validator)
