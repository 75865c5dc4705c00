"""The Debian base, layers and images: 50 to 53, 60 to 69, 215, 238 and 239."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class DebFormatError(LibraryError, exit_code=50):
    """A .deb cannot be read: it is damaged, or uses an unsupported format."""


class UnsafePathError(LibraryError, exit_code=51):
    """A package contains something that must not be in an image: a path that escapes, a device, a whiteout."""


class UnknownAlternativeError(LibraryError, exit_code=52):
    """A package registers an alternative that is missing from the base's table."""


class UndeclaredMetadataError(LibraryError, exit_code=53):
    """A package needs an owner or a directory mode that is missing from the base's tables."""


class DuplicatePathError(LibraryError, exit_code=60):
    """Two entries of one layer have the same path."""


class DamagedFileError(LibraryError, exit_code=61):
    """The content of a package or layer does not match its own directory, RECORD or format."""


class WrongSlimmingError(LibraryError, exit_code=244):
    """A slimmed library is not the one on record in locks/slim.toml."""


class BadWheelError(LibraryError, exit_code=62):
    """A wheel violates its format."""


class UnsafeWheelError(BadWheelError, exit_code=215):
    """A wheel has a path that escapes, a whiteout, a link or a device, would replace Python, or fill the disk."""


class NotReproducibleError(LibraryError, exit_code=63):
    """A layer differs from the one recorded for the same inputs."""


class ImageMissingError(LibraryError, exit_code=64):
    """The image has not been built yet, or part of it is missing or unreadable."""


class EngineError(LibraryError, exit_code=65):
    """The container engine is missing, or fails."""


class VerificationError(LibraryError, exit_code=66):
    """An image differs from its rebuild."""


class PathNotFoundError(LibraryError, exit_code=67):
    """No layer of the image contains this path."""


class StoreBusyError(LibraryError, exit_code=68):
    """A running build uses the cache that was to be cleaned."""


class WorkerLostError(LibraryError, exit_code=69):
    """A process that was building a layer was killed, usually because memory ran out."""


class NoPythonError(LibraryError, exit_code=238):
    """No locked Python of this machine can compile the bytecode of an image."""


class BytecodeError(LibraryError, exit_code=239):
    """Debian's Python did not compile the bytecode of an image."""
