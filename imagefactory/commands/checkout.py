"""The checkout that commands act on: tasks.py names it, since a checkout may link to this library."""

from __future__ import annotations

from pathlib import Path

_ROOT: list[Path] = []


def act_on(root: Path) -> None:
    """Name the checkout."""
    _ROOT[:] = [root]


def checkout_root() -> Path:
    """Return the root of the checkout; before it is named, the folder we are in."""
    return _ROOT[0] if _ROOT else Path.cwd()
