"""Mods: 80 to 94."""

from __future__ import annotations

from imagefactory.errors import FactoryError
from images.shipped.errors import (
    AnchorError,
    ModCheckError,
    ModConflictError,
    ModCycleError,
    ModFileError,
    ModKeyError,
    ModLicenceError,
    ModManifestError,
    ModNotApplicableError,
    ModPathError,
    ModSyntaxError,
    ModVersionsError,
    PatchError,
)

__all__ = [
    "AnchorError",
    "ModCheckError",
    "ModClaimError",
    "ModConflictError",
    "ModCycleError",
    "ModFileError",
    "ModKeyError",
    "ModLicenceError",
    "ModManifestError",
    "ModNotApplicableError",
    "ModPathError",
    "ModSyntaxError",
    "ModVersionsError",
    "PatchError",
    "SourceMissingError",
]


class ModClaimError(FactoryError):
    """A mod claims a version for which it does not hold."""

    exit_code = 87


class SourceMissingError(FactoryError):
    """The sources that a mod changes are out of reach."""

    exit_code = 88
