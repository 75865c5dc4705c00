"""Parses JSON that comes from elsewhere: from registries, indexes and the files of other programs."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401 - anything may come
    """Parse JSON; raise ValueError if it is none, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
