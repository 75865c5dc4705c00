"""Container registries: 105 to 112. A digest that does not match is 41, a full disk 42."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class RegistryError(FactoryError):
    """The registry fails, or answers with nonsense. The base of everything else that goes wrong with a registry."""

    exit_code = 110


class BadReferenceError(RegistryError):
    """A text does not name an image in a registry."""

    exit_code = 105


class CredentialsError(RegistryError):
    """The registry wants credentials and there are none, or it does not accept them."""

    exit_code = 106


class AccessDeniedError(RegistryError):
    """The credentials are known to the registry, but do not allow this."""

    exit_code = 107


class RepositoryMissingError(RegistryError):
    """The registry has no repository of this name."""

    exit_code = 108


class RegistryUnreachableError(RegistryError):
    """The registry does not answer, or not in time."""

    exit_code = 109


class ContentMissingError(RegistryError):
    """The repository does not have the blob or the manifest that was asked for."""

    exit_code = 111


class BlobTooLargeError(RegistryError):
    """A blob is larger than the registry takes, or than whoever asked for it is willing to hold."""

    exit_code = 112
