"""Smoke tests: 120 and 121."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class SmokeFailedError(FactoryError):
    """An image failed a smoke test, or a level that was asked for could not run."""

    exit_code = 120


class SmokeRecordError(FactoryError):
    """A record of smoke tests is missing, damaged, or of another image."""

    exit_code = 121
