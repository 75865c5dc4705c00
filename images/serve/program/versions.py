"""Compares vLLM versions without the packaging library."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)*")


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version; a development version counts as its release."""
    found = _NUMBERS.match(version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def at_least(version: str, bound: str) -> bool:
    """Whether a version is `bound` or later."""
    left, right = release(version), release(bound)
    width = max(len(left), len(right))
    return left + (0,) * (width - len(left)) >= right + (0,) * (width - len(right))


def between(version: str, first: str, end: str) -> bool:
    """Whether a version is at least `first` and older than `end`."""
    return at_least(version, first) and not at_least(version, end)
