"""Conditions that select cells, for rules in matrix.yaml and for mods."""

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from images.shipped.values import Specifier


class Condition(BaseModel):
    """A condition on cells; every key that is given must match."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str | None = None
    server: str | None = None
    version: str | None = None
    arch: str | None = None
    weights: str | None = None
    drafter: str | None = None
    vllm: Specifier | None = None
    sglang: Specifier | None = None
    capability: Specifier | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise PydanticCustomError("condition", "`when` is empty and would match everything")
        return self
