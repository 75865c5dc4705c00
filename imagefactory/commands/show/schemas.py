"""JSON schemas of what people and programs read, generated from the models so that they stay true."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from imagefactory.compile.settings import CompileSettings
from imagefactory.matrix.matrix import Matrix
from imagefactory.plan.plan import Plan
from imagefactory.store.atomic import write_text
from images.shipped.mods.manifest import Manifest

SCHEMAS: dict[str, type[BaseModel]] = {
    "compile.schema.json": CompileSettings,
    "matrix.schema.json": Matrix,
    "mod.schema.json": Manifest,
    "plan.schema.json": Plan,
}


def write_schemas(folder: Path, *, check: bool) -> list[Path]:
    """Write the schemas that are out of date, or only list them."""
    stale: list[Path] = []
    for name, model in SCHEMAS.items():
        path = folder / name
        text = json.dumps(model.model_json_schema(), indent=2) + "\n"
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(path)
            if not check:
                write_text(path, text)
    return stale
