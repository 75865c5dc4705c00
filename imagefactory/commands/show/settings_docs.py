"""The generated tables of docs/serving.md and README.md: settings, and what each model sets (`invoke docs`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imagefactory.build.start.preview import Preview
from imagefactory.commands.show.settings_tables import defaults_by_model, replace_between
from imagefactory.matrix.cells import Cell, usable_drafters
from imagefactory.matrix.matrix import Matrix, load_matrix
from imagefactory.matrix.targets import select_one
from imagefactory.plan.serve.description import Description, describe_image

MODEL_BEGIN, MODEL_END = "<!-- models: begin -->", "<!-- models: end -->"


def settings_table(root: Path) -> str:
    """Give the table of settings, with the defaults of the first model of the matrix."""
    matrix = load_matrix(root / "matrix.yaml")
    cell = select_one(matrix, "")
    document = _model(matrix, cell)
    return Preview(root, describe_image(matrix, cell, document), document).markdown()


def model_table(root: Path) -> str:
    """Give the table of defaults per model, on the default arch."""
    matrix = load_matrix(root / "matrix.yaml")
    described: dict[str, Description] = {}
    for name, model in matrix.models.items():
        if model.generated is None:
            cell = select_one(matrix, name)
            described[name] = describe_image(matrix, cell, _model(matrix, cell))
    return defaults_by_model(described)


def update(root: Path) -> list[Path]:
    """Write the tables into the documents that show them; list those that changed."""
    serving, readme = root / "docs" / "serving.md", root / "README.md"
    settings = settings_table(root)
    texts = {path: replace_between(path.read_text("utf-8"), settings) for path in (serving, readme)}
    texts[serving] = replace_between(texts[serving], model_table(root), MODEL_BEGIN, MODEL_END)
    changed = [path for path, text in texts.items() if path.read_text("utf-8") != text]
    for path in changed:
        path.write_text(texts[path], "utf-8")
    return changed


def _model(matrix: Matrix, cell: Cell) -> dict[str, Any]:
    """Describe a model as matrix.yaml has it: no revisions, no mods, so the document changes with the matrix only."""
    model = matrix.models[cell.model]
    return {
        "model": model.repo or str(model.generated),
        "drafters": [
            drafter.model_dump(mode="json", exclude_none=True) for drafter in usable_drafters(matrix, cell)
        ],
        "serve": model.serve.model_dump(mode="json", exclude_defaults=True, exclude={"env"}),
    }
