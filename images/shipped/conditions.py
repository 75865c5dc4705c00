"""Conditions: the cells that a rule of the matrix, or a mod, is about."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from images.shipped.values import Specifier


class Condition(BaseModel):
    """The parts of a rule; those that are given must all hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str | None = None
    version: str | None = None
    arch: str | None = None
    weights: str | None = None
    drafter: str | None = None
    vllm: Specifier | None = None
    capability: Specifier | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise PydanticCustomError("condition", "`when` is empty and would exclude everything")
        return self
