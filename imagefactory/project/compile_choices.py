"""Describes what a vLLM version takes from its publisher and what we compile, on every arch or on some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from imagefactory.errors import did_you_mean
from images.shipped.values import Distribution, Name

KernelKind = Literal["published", "graft", "whole"]
KINDS: tuple[KernelKind, ...] = get_args(KernelKind)
_FORMER = {"required": "whole", "optional": "published", "vllm": "whole"}


def _check(value: Any) -> Any:  # noqa: ANN401 - whatever YAML holds
    """Report mistakes in plain words; a union of types would report one for each of them."""
    if isinstance(value, dict):
        if not value:
            raise PydanticCustomError("compile", "name an arch and what to compile for it")
        for arch, choice in value.items():
            _check_choice(choice, f"{arch}: ")
    else:
        _check_choice(value, "")
    return value


def _check_choice(choice: object, at: str) -> None:
    words = choice if isinstance(choice, list) else [choice]
    why = ""
    if not words or not all(isinstance(word, str) for word in words):
        why = f"write {', '.join(KINDS)}, or a list of packages"
    elif former := next((word for word in words if word in _FORMER), None):
        why = f"`{former}` is written as `{_FORMER[former]}`"
    elif isinstance(choice, str) and choice not in KINDS:
        why = f"there is no {choice!r}: {did_you_mean(choice, KINDS)}"
    elif len([word for word in words if word in KINDS]) > 1:
        why = f"choose one of {', '.join(KINDS)}"
    if why:
        raise PydanticCustomError("compile", "{text}", {"text": f"{at}{why}"})


Choice = KernelKind | Annotated[list[Distribution], Field(min_length=1)]
CompileChoices = Annotated[Choice | dict[Name, Choice], BeforeValidator(_check)]


def choice_for(choices: Choice | Mapping[str, Choice], arch: str) -> tuple[KernelKind, tuple[str, ...]]:
    """Return how an arch gets vLLM's kernels, and the other packages that are compiled for it."""
    choice: str | Sequence[str]
    choice = choices.get(arch, "published") if isinstance(choices, Mapping) else choices
    words = (choice,) if isinstance(choice, str) else tuple(choice)
    kinds: list[KernelKind] = [kind for kind in KINDS if kind in words]
    return (*kinds, KINDS[0])[0], tuple(word for word in words if word not in KINDS)
