"""Container registries: 105 to 112, and 210 to 213. A wrong digest is 41, a full disk 42."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class RegistryError(LibraryError, exit_code=110):
    """The registry fails, or sends an unusable response. The base class of all registry failures."""


class BadReferenceError(RegistryError, exit_code=105):
    """A text does not name an image in a registry."""


class CredentialsError(RegistryError, exit_code=106):
    """The registry requires credentials and there are none, or it rejects them."""


class AccessDeniedError(RegistryError, exit_code=107):
    """The credentials are valid, but do not grant this access."""


class RepositoryMissingError(RegistryError, exit_code=108):
    """The registry has no repository of this name."""


class RegistryUnreachableError(RegistryError, exit_code=109):
    """The registry does not respond, or not in time."""


class ContentMissingError(RegistryError, exit_code=111):
    """The repository does not have the requested blob or manifest."""


class BlobTooLargeError(RegistryError, exit_code=112):
    """A blob is larger than the registry accepts, or than the caller is willing to read."""


class UnboundedAnswerError(RegistryError, exit_code=210):
    """An answer never ends, or has more in it than a client should read: too large, too deep, too many pages."""


class UnsafeAddressError(RegistryError, exit_code=211):
    """The registry sends its client to an address without TLS, or into a private network."""


class RegistryBusyError(RegistryError, exit_code=212):
    """The registry asks for a longer wait than a command grants."""


class AttachmentLostError(RegistryError, exit_code=213):
    """An artifact was pushed, but could not be added to the list of what is attached to an image."""
