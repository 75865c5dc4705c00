"""Figures that others published, with their sources: a reference, never mixed with own results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from imagefactory.bench.profiles import FOLDER, load_data

Figure = Annotated[float, Field(gt=0)]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PublishedFigure(_Value):
    """A row of somebody's table."""

    source: str
    models: tuple[str, ...]
    """The models of matrix.yaml that it is about."""
    served: str = ""
    """The model, if matrix.yaml does not have it."""
    gpu: str
    drafter: str
    kind: str
    users: Annotated[int, Field(gt=0)]
    tokens_per_second: Figure
    first_token_ms: Figure | None = None
    per_token_ms: Figure | None = None
    acceptance_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    acceptance_length: Figure | None = None

    @property
    def drafted(self) -> str:
        """The drafter, in words."""
        return "no drafter" if self.drafter == "none" else self.drafter

    @model_validator(mode="after")
    def _is_about_something(self) -> Self:
        if bool(self.models) == bool(self.served):
            raise ValueError("a figure names either models of the matrix or the model served")
        return self


class PublishedFigures(_Value):
    """All published figures."""

    sources: dict[str, str]
    figures: tuple[PublishedFigure, ...]

    @model_validator(mode="after")
    def _has_sources(self) -> Self:
        used = {figure.source for figure in self.figures}
        if used != self.sources.keys():
            raise ValueError(
                f"sources without figures or figures without sources: {sorted(used ^ self.sources.keys())}"
            )
        return self

    def about(self, model: str) -> list[PublishedFigure]:
        """Return the figures of a model of the matrix."""
        return [figure for figure in self.figures if model in figure.models]


def load_published(root: Path) -> PublishedFigures:
    """Read the published figures of a checkout."""
    return load_data(root / FOLDER / "published.yaml", PublishedFigures)
