"""matrix.yaml, the names of targets, and YAML files: 10 to 19."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class YamlSyntaxError(FactoryError):
    """The file is not YAML, or uses a part of YAML that we do not accept."""

    exit_code = 10


class MatrixError(FactoryError):
    """matrix.yaml is YAML, but a key or a value in it is wrong."""

    exit_code = 11


class DuplicateKeyError(FactoryError):
    """A key stands twice in one mapping; YAML would silently keep the last."""

    exit_code = 12


class UnknownNameError(FactoryError):
    """A target, arch, model or version that the matrix does not have."""

    exit_code = 13


class ExcludedCellError(FactoryError):
    """The target names a combination that a rule of the matrix excludes."""

    exit_code = 14


class SpecifierError(FactoryError):
    """A version or version range that PEP 440 does not allow."""

    exit_code = 15
