"""Benchmarks: 240, 241 and 247 to 248."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class BenchIncompleteError(LibraryError, exit_code=240):
    """A benchmark ended early, or could not begin: the server died, hung, refused the key or answered with errors."""


class WrongAnswersError(LibraryError, exit_code=241):
    """A server was measured whose answers are empty, garbage, or differ for the same prompt."""


class NotComparableError(LibraryError, exit_code=247):
    """Two benchmark results differ in more than was asked."""


class BenchResultError(LibraryError, exit_code=248):
    """A benchmark result or a file of benchmarks/ cannot be read, or is not plausible."""
