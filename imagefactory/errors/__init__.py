"""Every failure a user can meet, with an exit code of its own.

Above `images.shipped`; imports nothing from the rooms above it.
"""

from __future__ import annotations

from images.shipped.errors import FactoryError, Location, did_you_mean

__all__ = ["FactoryError", "Location", "did_you_mean"]
