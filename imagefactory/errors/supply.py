"""Licences, signatures and attestations: 122 to 125."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class LicenceUnknownError(LibraryError, exit_code=122):
    """The licence of a locked file has not been recorded yet."""


class SigningError(LibraryError, exit_code=123):
    """A key or identity cannot sign or verify: it is missing, unreadable, or of an unsupported kind."""


class ImageSignatureError(LibraryError, exit_code=124):
    """An image has no signature by a trusted key or identity, or an invalid one."""


class TamperedError(LibraryError, exit_code=125):
    """An image or one of its attachments differs from what was signed."""
