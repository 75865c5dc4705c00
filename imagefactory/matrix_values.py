"""The kinds of values in matrix.yaml and mod.yaml: names, versions, ranges, each checked where it stands."""

from __future__ import annotations

from typing import Annotated, LiteralString

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise _wrong("specifier", "{text} is not a version range", text) from None
    return text


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion:
        raise _wrong("specifier", "{text} is not a version", text) from None
    return text


def _distribution(text: str) -> str:
    try:
        return str(canonicalize_name(text, validate=True))
    except InvalidName:
        raise _wrong("distribution", "{text} is not the name of a Python package", text) from None


def unique(values: list[str]) -> list[str]:
    """Refuse a list in which something stands twice."""
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise _wrong("unique", "{text} stands twice", twice)
    return values


def _wrong(kind: LiteralString, message: LiteralString, text: str) -> PydanticCustomError:
    return PydanticCustomError(kind, message, {"text": repr(text)})


Specifier = Annotated[str, AfterValidator(_specifier)]
VersionText = Annotated[str, AfterValidator(_version)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$", max_length=60)]
"""Names become parts of tags and paths, so they keep to what a registry accepts."""
HubRepo = Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")]
Distribution = Annotated[str, AfterValidator(_distribution)]
DebianPackage = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]+$")]
ArchList = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9][af]?( [0-9]+\.[0-9][af]?)*$")]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
