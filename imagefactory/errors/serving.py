"""Starting images: 70 to 72."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class SettingRefusedError(LibraryError, exit_code=70):
    """A container setting is unknown, or the image's serve program would reject it."""


class UnpinnedImageError(LibraryError, exit_code=71):
    """A command line, file or recipe for others does not name its image by digest."""


class KeyNotPassedError(LibraryError, exit_code=72):
    """A key or token was given that cannot be passed to a container, or only where others can read it."""
