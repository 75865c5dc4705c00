"""The first difference between two SBOMs, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def first_difference(content: bytes, expected: bytes) -> str:
    """Describe where an SBOM first differs from the expected one."""
    try:
        left, right = json.loads(content), json.loads(expected)
        ours = {part["bom-ref"]: part for part in left["components"]}
        theirs = {part["bom-ref"]: part for part in right["components"]}
    except (ValueError, KeyError, TypeError) as error:
        return f"it cannot be read ({type(error).__name__})"
    for reference in sorted(ours.keys() | theirs.keys()):
        if reference not in ours:
            return f"the component {reference} is missing"
        if reference not in theirs:
            return f"the component {reference} should not be there"
        if ours[reference] != theirs[reference]:
            return f"component {reference}: {_field(ours[reference], theirs[reference])}"
    if left != right:
        return _field(left, right)
    return "it is written differently, though it says the same"


def _field(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    name = next(name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name))
    return f"{name} is {_short(ours.get(name))}, should be {_short(theirs.get(name))}"


def _short(value: object, most: int = 160) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= most else f"{text[:most]}…"
