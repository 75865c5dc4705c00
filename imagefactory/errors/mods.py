"""Mods: 80 to 94, 208 and 209."""

from __future__ import annotations

from imagefactory.errors import LibraryError
from images.shipped.errors import (
    AnchorError,
    ModCheckError,
    ModConflictError,
    ModCycleError,
    ModFileError,
    ModForbiddenPathError,
    ModKeyError,
    ModLicenceError,
    ModManifestError,
    ModNotApplicableError,
    ModPathError,
    ModSyntaxError,
    ModTakenPathError,
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
    "ModForbiddenPathError",
    "ModKeyError",
    "ModLicenceError",
    "ModManifestError",
    "ModNotApplicableError",
    "ModPathError",
    "ModSyntaxError",
    "ModTakenPathError",
    "ModVersionsError",
    "PatchError",
    "SourceMissingError",
]


class ModClaimError(LibraryError, exit_code=87):
    """A mod claims to fit a version, but does not."""


class SourceMissingError(LibraryError, exit_code=88):
    """The sources that a mod changes cannot be found or downloaded."""
