"""matrix.yaml, the names of targets, and YAML files: 10 to 19."""

from __future__ import annotations

from imagefactory.errors import FactoryError
from images.shipped.errors import DuplicateKeyError, UnknownNameError, YamlSyntaxError

__all__ = [
    "DuplicateKeyError",
    "ExcludedCellError",
    "MatrixError",
    "SpecifierError",
    "UnknownNameError",
    "YamlSyntaxError",
]


class MatrixError(FactoryError):
    """matrix.yaml is YAML, but a key or a value in it is wrong."""

    exit_code = 11


class ExcludedCellError(FactoryError):
    """The target names a combination that a rule of the matrix excludes."""

    exit_code = 14


class SpecifierError(FactoryError):
    """A version or version range that PEP 440 does not allow."""

    exit_code = 15
