"""Field types of matrix.yaml: lists without duplicates, Debian packages, counts, GPU targets."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints
from pydantic_core import PydanticCustomError


def unique(values: list[str]) -> list[str]:
    """Reject a list with duplicates."""
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise PydanticCustomError("unique", "{text} appears twice", {"text": repr(twice)})
    return values


DebianPackage = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]+$")]

ArchList = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9][af]?( [0-9]+\.[0-9][af]?)*$")]

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
