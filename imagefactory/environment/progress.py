"""How work reports its progress: a sentence now and then, and the number of bytes done."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
"""Receives a sentence about what is being done."""

Progress = Callable[[int], None]
"""Receives the number of bytes done so far; it drops when something starts over."""
