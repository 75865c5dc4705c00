"""Keeping, sharing and adopting compiled wheels: 73 to 79, 227, and 245."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class WrongWheelError(LibraryError, exit_code=73):
    """A wheel is for another package, version or architecture than requested."""


class DamagedWheelError(LibraryError, exit_code=74):
    """A file in the wheelhouse has changed since it was stored."""


class WheelNotKeptError(LibraryError, exit_code=75):
    """Neither the wheelhouse nor the registry has such a wheel."""


class SeveralWheelsError(LibraryError, exit_code=76):
    """Several compiled wheels match, and the request does not choose one."""


class WheelArtifactError(LibraryError, exit_code=77):
    """The registry's artifact under a wheel's name is not that wheel."""


class NoRegistryError(LibraryError, exit_code=78):
    """No registry is configured for sharing wheels."""


class KernelRecordError(LibraryError, exit_code=79):
    """locks/kernels.toml does not record the kernels of a wheel."""


class UnfitWheelError(LibraryError, exit_code=227):
    """A compiled wheel is for another Python, glibc or CUDA than the image's, or is not of the kind that it wants."""


class ArchiveIncompleteError(LibraryError, exit_code=245):
    """Some locked files of a target cannot be archived, because nobody has them any more."""
