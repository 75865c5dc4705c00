"""The Debian base, layers and images: 50 to 69."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class DebFormatError(FactoryError):
    """A .deb cannot be read: it is damaged, or made in a way we do not know."""

    exit_code = 50


class UnsafePathError(FactoryError):
    """A package holds something that may not go into an image: a path that escapes, a device, a whiteout."""

    exit_code = 51


class UnknownAlternativeError(FactoryError):
    """A package registers an alternative that the base's table does not have."""

    exit_code = 52


class UndeclaredMetadataError(FactoryError):
    """A package asks for an owner or a directory mode that the base's tables do not have."""

    exit_code = 53


class DuplicatePathError(FactoryError):
    """Two things of one layer want the same path."""

    exit_code = 60


class DamagedFileError(FactoryError):
    """A package's content is not what its own directory says."""

    exit_code = 61


class BadWheelError(FactoryError):
    """A wheel breaks a rule of its format, or tries to write outside of its environment."""

    exit_code = 62


class NotReproducibleError(FactoryError):
    """A layer came out differently from what was recorded for the same inputs."""

    exit_code = 63


class ImageMissingError(FactoryError):
    """The image has not been built yet."""

    exit_code = 64


class EngineError(FactoryError):
    """The container engine is missing, or refuses."""

    exit_code = 65


class VerificationError(FactoryError):
    """An image is not what a rebuild gives."""

    exit_code = 66


class PathNotFoundError(FactoryError):
    """Nothing in the image owns this path."""

    exit_code = 67


class StoreBusyError(FactoryError):
    """A build is using what was to be removed."""

    exit_code = 68


class WorkerLostError(FactoryError):
    """A process that built a layer was killed from outside, mostly because memory ran out."""

    exit_code = 69
