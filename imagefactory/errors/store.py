"""Downloads, the cache and the disk: 40 to 49."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class DownloadError(FactoryError):
    """A locked file could not be fetched from anywhere."""

    exit_code = 40
    about_the_machine = True


class DigestMismatchError(FactoryError):
    """A file's bytes are not the ones that the lock or the manifest names."""

    exit_code = 41


class DiskFullError(FactoryError):
    """There is no room left for what has to be written."""

    exit_code = 42
    about_the_machine = True


class OutputError(FactoryError):
    """The place that was named for an image cannot be written to, or holds something else."""

    exit_code = 43
