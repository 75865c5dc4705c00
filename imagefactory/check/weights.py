"""Tells generated weights from real ones: their speed can be measured, and their answers say nothing."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final, Literal

Weights = Literal["", "generated"]  # of a record; empty for a model's own
PREFIX: Final = "generated-"  # of the folder of a model with generated weights


def weights_of(settings: Mapping[str, str], model: str = "") -> Weights:
    """Return what weights a server has, by its settings and by the folder of its model."""
    folder = PurePosixPath(model or settings.get("MODEL_PATH", "")).name
    return "generated" if settings.get("LOAD_FORMAT") == "dummy" or folder.startswith(PREFIX) else ""
