"""Types of values in mod.yaml and matrix.yaml: names, versions and ranges; conditions that select cells."""

from typing import Annotated, Literal, LiteralString, Self

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, model_validator
from pydantic_core import PydanticCustomError


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text).contains("0", prereleases=True)
    except ValueError:  # InvalidSpecifier, or a number with thousands of digits
        raise _wrong("specifier", "{text} is not a version range", text) from None
    return text


def _version(text: str) -> str:
    try:
        Version(text)
    except ValueError:  # InvalidVersion, or a number with thousands of digits
        raise _wrong("specifier", "{text} is not a version", text) from None
    return text


def _distribution(text: str) -> str:
    try:
        return str(canonicalize_name(text, validate=True))
    except InvalidName:
        raise _wrong("distribution", "{text} is not the name of a Python package", text) from None


def _wrong(kind: LiteralString, message: LiteralString, text: str) -> PydanticCustomError:
    return PydanticCustomError(kind, message, {"text": repr(text)})


Specifier = Annotated[str, AfterValidator(_specifier)]
VersionText = Annotated[str, AfterValidator(_version)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$", max_length=60)]
"""Names become parts of tags and paths, so they contain only what a registry accepts."""
HubRepo = Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")]
ServerName = Literal["vllm", "sglang"]
Distribution = Annotated[str, AfterValidator(_distribution)]


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
