"""The factory's own environment: 19."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class SetUpError(FactoryError):
    """The environment that the factory runs in cannot be made or brought up to date."""

    exit_code = 19
