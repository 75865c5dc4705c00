"""Sharing compiled objects: 236 and 237."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class ObjectCacheError(LibraryError, exit_code=236):
    """What a registry offers as compiled objects is not ccache's."""


class NoObjectsError(LibraryError, exit_code=237):
    """There are no compiled objects to push or pull."""
