"""How work is followed: a sentence now and then, and how many bytes are done."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
"""Is told, in a sentence, what is being done."""

Progress = Callable[[int], None]
"""Is told how many bytes are done; fewer than before when something starts again."""
