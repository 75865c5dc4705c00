"""Our own mistakes: 59."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class InternalError(FactoryError):
    """The factory itself is at fault; a file holds what its authors need to know."""

    exit_code = 59
