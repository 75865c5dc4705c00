"""Compiling and auditing kernels: 95 to 99, 36 to 39, 54, 226 and 228."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class AuditError(LibraryError, exit_code=95):
    """A library cannot be inspected, or there is nothing to compare it with."""


class AuditFailedError(LibraryError, exit_code=96):
    """A library contains no code that runs on the arch."""


class CompileFailedError(LibraryError, exit_code=97):
    """The compile failed; its log shows where, and another run continues from there."""


class NotEnoughRoomError(LibraryError, exit_code=98):
    """The machine has too little memory or disk space; the compile would fail hours later with a worse message."""


class WrongSourceError(LibraryError, exit_code=99):
    """A folder given with --source is not a checkout of the expected project."""


class SourceUnreachableError(LibraryError, exit_code=36):
    """A source cannot be fetched with git."""


class ToolchainMisfitError(LibraryError, exit_code=37):
    """The toolchain cannot compile the source, or its output would not run in the image."""


class CompileBusyError(LibraryError, exit_code=38):
    """Another process is compiling the same thing."""


class CompileDataError(LibraryError, exit_code=39):
    """compile.yaml contains an impossible value."""


class UnknownTargetError(LibraryError, exit_code=54):
    """The sources have no such target or module to compile."""


class NothingToCarryError(LibraryError, exit_code=232):
    """No published wheel has what a compile takes over from it."""


class NotReachedError(LibraryError, exit_code=233):
    """vLLM would call a kernel on this chip that is missing or empty."""


class GraftMismatchError(LibraryError, exit_code=226):
    """A compiled library does not offer what the published one does, needs other libraries, or is for other chips."""


class GraftBaseError(LibraryError, exit_code=228):
    """There is no published wheel to graft kernels into, or it lacks a library that would be replaced."""
