"""The command line itself: 16 and 17."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class UsageError(FactoryError):
    """The command line names no such command or option, or leaves out something that a command needs."""

    exit_code = 16


class OptionError(FactoryError):
    """An option has a value that it cannot have, or does not go together with another one."""

    exit_code = 17
