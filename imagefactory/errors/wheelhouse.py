"""Compiled wheels: keeping, moving and adopting them: 73 to 79."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class WrongWheelError(FactoryError):
    """A wheel is not what was to be compiled: another package, version, or kind of machine."""

    exit_code = 73


class DamagedWheelError(FactoryError):
    """What the wheelhouse holds is not what was put into it."""

    exit_code = 74
