"""Recipes of other launchers: 234 and 235."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class RegistryFolderError(LibraryError, exit_code=234):
    """A folder for exported recipes holds something else."""


class NothingToExportError(LibraryError, exit_code=235):
    """None of the targets has an image that a recipe could name by digest."""
