"""Mods: 80 to 94, 200, 201, 208, 209, 219 and 222 to 224."""

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
    "ImportSourceError",
    "MissingDownloadError",
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
    "NotImportableError",
    "PatchError",
    "RebaseError",
    "ReplayError",
    "SourceMissingError",
    "UnfitDraftError",
]


class ModClaimError(LibraryError, exit_code=87):
    """A mod claims to fit a version, but does not."""


class SourceMissingError(LibraryError, exit_code=88):
    """The sources that a mod changes cannot be found or downloaded."""


class ImportSourceError(LibraryError, exit_code=200):
    """What should become a mod cannot be read: no script, diff or text file, or more than a mod can have."""


class NotImportableError(LibraryError, exit_code=201):
    """Something cannot become a mod: on no version does it make a change that mods can make."""


class ReplayError(LibraryError, exit_code=219):
    """The container that replays a script ended without a report."""


class MissingDownloadError(NotImportableError, exit_code=222):
    """A script fetches files, which are not supplied."""


class RebaseError(LibraryError, exit_code=223):
    """A mod cannot be carried over to another version exactly."""


class UnfitDraftError(LibraryError, exit_code=224):
    """The mod that was drafted does not do on every version what was seen when it was drafted."""
