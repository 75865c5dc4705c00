"""Locks, what they are resolved from, and plans: 20 to 39."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class LockMissingError(FactoryError):
    """The cell has no lock yet."""

    exit_code = 20


class LockEditedError(FactoryError):
    """The lock's content does not match its own checksum: somebody edited it by hand."""

    exit_code = 21


class LockDriftError(FactoryError):
    """matrix.yaml changed after the lock was made."""

    exit_code = 22


class LockFormatError(FactoryError):
    """The lock is not readable, or was written by another version of the factory."""

    exit_code = 23


class ResolutionError(FactoryError):
    """No set of packages satisfies what the matrix asks for."""

    exit_code = 24


class WheelMissingError(FactoryError):
    """No configured index has this wheel, or none of its files fits the platform."""

    exit_code = 25


class IndexUnreachableError(FactoryError):
    """The package index does not answer."""

    exit_code = 26
    about_the_machine = True


class ArchiveSignatureError(FactoryError):
    """The Debian archive's signature does not verify."""

    exit_code = 27


class MirrorError(FactoryError):
    """No Debian mirror is known, or it does not answer, or it answers wrongly."""

    exit_code = 28
    about_the_machine = True


class PathConflictError(FactoryError):
    """Two packages own the same path with different content, and the matrix does not say who wins."""

    exit_code = 29


class IncompatibleWheelError(FactoryError):
    """A locked wheel cannot run on the base: wrong Python, wrong platform, or a newer glibc."""

    exit_code = 30


class DebianPackageError(FactoryError):
    """A Debian package or its dependency does not exist in the suites of the base."""

    exit_code = 31


class ModelHubError(FactoryError):
    """The model hub does not answer, or does not know the model."""

    exit_code = 32


class CompileNeededError(FactoryError):
    """The cell's kernels exist as source only."""

    exit_code = 33


class RecordNotWrittenError(FactoryError):
    """What layers come out as cannot be recorded in locks/layers.toml; if a build came before, its image is there."""

    exit_code = 34


class TooManyLayersError(FactoryError):
    """The plan needs more layers than a container engine can stack."""

    exit_code = 35
