"""Reads data/: profiles and prompts of benchmarks, the panel and scenarios of answers, published figures, advice."""

from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from imagefactory.errors import InputError
from imagefactory.project.wording import first_problem, plainly
from images.shipped.yamlfile import read_yaml

DATA: Final = "data"
Model = TypeVar("Model", bound=BaseModel)


def load_data(root: Path, name: str, model: type[Model]) -> Model:
    """Read a file of data/ in a checkout."""
    path = root / DATA / name
    try:
        with plainly(path.parent):
            return model.model_validate(read_yaml(path).data)
    except ValidationError as error:
        raise InputError(
            "bad-data", f"{path.name} cannot be used.", where=path, why=f"{first_problem(error)}.", fix="Correct it."
        ) from None
