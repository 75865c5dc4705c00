"""The command line, the environment it runs in, and bugs: 16, 17, 19 and 59."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class UsageError(LibraryError, exit_code=16):
    """The command line has an unknown command or option, or lacks a required one."""


class OptionError(LibraryError, exit_code=17):
    """An option has an invalid value, or conflicts with another option."""


class SetUpError(LibraryError, exit_code=19):
    """The factory's own environment cannot be created or updated."""


class InternalError(LibraryError, exit_code=59):
    """A bug in the factory; the details are in a file for its authors."""
