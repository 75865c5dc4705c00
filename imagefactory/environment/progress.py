"""The callbacks through which work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
"""Receives a sentence about the current step."""

Progress = Callable[[int], None]
"""Receives the number of bytes done so far; it drops after a restart."""
