"""Tells the date to commands that judge by it."""

from __future__ import annotations

from datetime import UTC, date, datetime


def today() -> date:
    """Return today's date in UTC."""
    return datetime.now(UTC).date()
