"""matrix.yaml, the names of targets, and YAML files: 10 to 15."""

from __future__ import annotations

from imagefactory.errors import LibraryError
from images.shipped.errors import DuplicateKeyError, UnknownNameError, YamlSyntaxError

__all__ = [
    "DuplicateKeyError",
    "ExcludedCellError",
    "MatrixError",
    "SpecifierError",
    "UnknownNameError",
    "YamlSyntaxError",
]


class MatrixError(LibraryError, exit_code=11):
    """matrix.yaml is valid YAML, but has a wrong key or value."""


class ExcludedCellError(LibraryError, exit_code=14):
    """The matrix excludes the combination that the target names."""


class SpecifierError(LibraryError, exit_code=15):
    """A version or version range violates PEP 440."""
