"""Smoke tests: 120 and 121."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class SmokeFailedError(LibraryError, exit_code=120):
    """An image failed a smoke test, or a requested level could not run."""


class SmokeRecordError(LibraryError, exit_code=121):
    """A record of smoke tests is missing, damaged, or belongs to another image."""
