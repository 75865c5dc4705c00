"""Locks, the sources they are resolved from, and plans: 20 to 35, 242, and 246."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class LockMissingError(LibraryError, exit_code=20):
    """The cell has no lock yet."""


class LockEditedError(LibraryError, exit_code=21):
    """The lock does not match its own checksum, so it was edited by hand."""


class LockDriftError(LibraryError, exit_code=22):
    """matrix.yaml has changed since the lock was written."""


class LockFormatError(LibraryError, exit_code=23):
    """The lock cannot be read, or was written by another version of the factory."""


class ResolutionError(LibraryError, exit_code=24):
    """No set of packages satisfies the matrix."""


class WheelMissingError(LibraryError, exit_code=25):
    """No configured index has this wheel, or none of its files fits the platform."""


class IndexUnreachableError(LibraryError, exit_code=26, about_the_machine=True):
    """The package index does not respond, or sends something else."""


class ArchiveSignatureError(LibraryError, exit_code=27):
    """The signature of the Debian archive is invalid."""


class MirrorError(LibraryError, exit_code=28, about_the_machine=True):
    """No Debian mirror is configured, or it does not respond, or it sends something else."""


class PathConflictError(LibraryError, exit_code=29):
    """Two packages own the same path with different content, and the matrix does not settle the conflict."""


class IncompatibleWheelError(LibraryError, exit_code=30):
    """A locked wheel cannot run on the base: wrong Python, wrong platform, or a newer glibc."""


class DebianPackageError(LibraryError, exit_code=31):
    """A Debian package or its dependency does not exist in the suites of the base."""


class ModelHubError(LibraryError, exit_code=32):
    """The model hub does not respond, or has no such model."""


class CompileNeededError(LibraryError, exit_code=33):
    """The cell's kernels exist only as source and have to be compiled first."""


class RecordNotWrittenError(LibraryError, exit_code=34):
    """Digests of layers cannot be recorded in locks/layers.toml; a preceding build is complete nevertheless."""


class TooManyLayersError(LibraryError, exit_code=35):
    """The plan needs more layers than a container engine can stack."""


class LeaveOutError(LibraryError, exit_code=242):
    """An entry of `leave_out` in matrix.yaml names something that no wheel brings, or that matrix.yaml asks for."""


class ReleaseReplacedError(LibraryError, exit_code=246):
    """The server that was resolved is not the release that matrix.yaml names."""
