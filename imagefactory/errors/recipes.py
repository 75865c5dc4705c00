"""Recipes of other launchers: 229 to 231, 234 and 235."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class RecipeFormatError(LibraryError, exit_code=229):
    """A recipe cannot be read: it is of an unknown format, or lacks what every recipe has."""


class RecipeCommandError(LibraryError, exit_code=230):
    """A recipe's command needs a shell, so that nobody can tell what it starts."""


class RecipeNotImportableError(LibraryError, exit_code=231):
    """A recipe is for a server or a machine that the factory makes no images for."""


class RegistryFolderError(LibraryError, exit_code=234):
    """A folder for exported recipes holds something else."""


class NothingToExportError(LibraryError, exit_code=235):
    """None of the targets has an image that a recipe could name by digest."""
