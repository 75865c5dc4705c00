"""Every failure a user can meet, one class and one exit code each; a module for each part of the factory.

A message has four parts: what happened, where, why, and what to do next. What the operating system says becomes one of
them, too (`system`), and whatever is left is a mistake of ours (`internal`), whose traceback goes to a file.
"""

from __future__ import annotations

from images.shipped.errors import FactoryError, Location, did_you_mean

__all__ = ["FactoryError", "Location", "did_you_mean"]
