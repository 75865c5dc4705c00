"""Licences, signatures and attestations: 122 to 125, and 205 to 207."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class LicenceUnknownError(LibraryError, exit_code=122):
    """The licence of a locked file has not been recorded yet."""


class SigningError(LibraryError, exit_code=123):
    """A key or identity cannot sign or verify: it is missing, unreadable, or of an unsupported kind."""


class ImageSignatureError(LibraryError, exit_code=124):
    """Something is attached to an image, but a trusted signature, provenance or SBOM is missing."""


class TamperedError(LibraryError, exit_code=125):
    """An image or one of its attachments is not what was signed or recorded."""


class UnfitIndexError(LibraryError, exit_code=205):
    """An index is empty, or lists anything but images of one target."""


class UnsignedImageError(LibraryError, exit_code=206):
    """Nobody signed an image: no statement is attached to it."""


class RecordDisagreesError(LibraryError, exit_code=207):
    """This checkout records another image for the same plan."""
