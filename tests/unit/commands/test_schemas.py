"""The committed JSON schemas are up to date; the matrix and plans conform to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from imagefactory.commands.show.docs import SCHEMAS, schemas, write_changed
from imagefactory.locks.project import Project
from imagefactory.plan.make import locked_plans
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
def test_schemas_are_valid(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))


def test_the_committed_matrix_conforms() -> None:
    matrix = yaml.safe_load((REPOSITORY / "matrix.yaml").read_text("utf-8"))
    jsonschema.validate(matrix, schema("matrix.schema.json"), jsonschema.Draft202012Validator)


def test_editors_find_the_schema_and_see_typos() -> None:
    text = (REPOSITORY / "matrix.yaml").read_text("utf-8")
    assert text.startswith("# yaml-language-server: $schema=docs/schemas/matrix.schema.json\n")
    matrix = yaml.safe_load(text.replace("    weights: mxfp4", "    wieghts: mxfp4"))
    with pytest.raises(jsonschema.ValidationError, match=r"wieghts|weights"):
        jsonschema.validate(matrix, schema("matrix.schema.json"), jsonschema.Draft202012Validator)


def test_every_locked_plan_conforms() -> None:
    validator = jsonschema.Draft202012Validator(schema("plan.schema.json"))
    for plan in locked_plans(Project(REPOSITORY)):
        validator.validate(plan.model_dump(mode="json"))
