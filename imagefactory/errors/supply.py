"""Licences, signatures and what is attached to images: 122 to 125."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class LicenceUnknownError(FactoryError):
    """The licence of a locked file has not been recorded yet."""

    exit_code = 122


class SigningError(FactoryError):
    """Nothing can be signed or checked with this key or identity: missing, unreadable, or of a kind we do not know."""

    exit_code = 123


class ImageSignatureError(FactoryError):
    """An image has no signature by anybody who is trusted, or one that does not fit."""

    exit_code = 124


class TamperedError(FactoryError):
    """An image, or something attached to it, is not what was signed."""

    exit_code = 125
