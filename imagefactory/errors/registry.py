"""Container registries: 105 to 112. A digest that does not match is 41, a full disk 42."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class BadReferenceError(FactoryError):
    """A text does not name an image in a registry."""

    exit_code = 105


class CredentialsError(FactoryError):
    """The registry wants credentials that there are none of, or does not accept those that there are."""

    exit_code = 106


class AccessDeniedError(FactoryError):
    """The credentials are known to the registry, but do not allow this."""

    exit_code = 107


class RepositoryMissingError(FactoryError):
    """The registry has no repository of this name."""

    exit_code = 108


class RegistryUnreachableError(FactoryError):
    """The registry does not answer, or not in time."""

    exit_code = 109


class RegistryError(FactoryError):
    """The registry answers, but with a failure or with nonsense."""

    exit_code = 110


class ContentMissingError(FactoryError):
    """The repository does not have the blob or the manifest that was asked for."""

    exit_code = 111


class BlobTooLargeError(FactoryError):
    """A blob is larger than the registry takes, or than whoever asked for it is willing to hold."""

    exit_code = 112
