"""Downloads, the cache and the disk: 40 to 43 and 220."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class DownloadError(LibraryError, exit_code=40, about_the_machine=True):
    """No source provides a locked file."""


class DigestMismatchError(LibraryError, exit_code=41):
    """A file does not have the digest in the lock or the manifest."""


class DiskFullError(LibraryError, exit_code=42, about_the_machine=True):
    """The disk is full, or a quota is used up."""


class OutputError(LibraryError, exit_code=43):
    """The destination of an image is not writable, or contains something else."""


class DamagedCacheError(LibraryError, exit_code=220):
    """A file in the cache, or an image laid out from it, does not have the sha256 in its name."""
