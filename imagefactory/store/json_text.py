"""Parses JSON that comes from elsewhere: from registries, indexes and the files of other programs."""

from __future__ import annotations

import json
from typing import Any


class TooDeepError(ValueError):
    """A text is nested more deeply than can be parsed."""


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401 - anything may come
    """Parse JSON; raise ValueError if it is none, or TooDeepError, which is one too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise TooDeepError("it is nested too deeply") from None
