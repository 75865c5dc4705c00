"""Keep the generated tables of docs/serving.md up to date: `python -m imagefactory.serving.document`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from imagefactory.cells import Cell, usable_drafters
from imagefactory.matrix import Matrix, load_matrix
from imagefactory.serving.description import Description, describe_image
from imagefactory.serving.preview import Preview
from imagefactory.serving.tables import defaults_by_model, replace_between
from imagefactory.targets import select

MODEL_BEGIN, MODEL_END = "<!-- models: begin -->", "<!-- models: end -->"


def settings_table(root: Path) -> str:
    """Give the table of settings, with the defaults of the first model of the matrix."""
    matrix = load_matrix(root / "matrix.yaml")
    cell = select(matrix, [next(iter(matrix.models))])[0]
    document = _model(matrix, cell)
    return Preview(root, describe_image(matrix, cell, document), document).markdown()


def model_table(root: Path) -> str:
    """Give the table of defaults per model, on the default arch."""
    matrix = load_matrix(root / "matrix.yaml")
    described: dict[str, Description] = {}
    for name, model in matrix.models.items():
        if model.generated is None:
            cell = select(matrix, [name])[0]
            described[name] = describe_image(matrix, cell, _model(matrix, cell))
    return defaults_by_model(described)


def update(root: Path) -> bool:
    """Write the tables into the document; say whether anything changed."""
    path = root / "docs" / "serving.md"
    old = path.read_text("utf-8")
    new = replace_between(old, settings_table(root))
    new = replace_between(new, model_table(root), MODEL_BEGIN, MODEL_END)
    path.write_text(new, "utf-8")
    return new != old


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


if __name__ == "__main__":
    sys.exit(1 if update(Path.cwd()) and "--check" in sys.argv else 0)
