"""Starting images: 70 to 79."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class SettingRefusedError(FactoryError):
    """A setting for a container is unknown, or the image's serve program would refuse it."""

    exit_code = 70


class UnpinnedImageError(FactoryError):
    """A line, file or recipe that others run must name its image by digest."""

    exit_code = 71


class KeyFileUnusableError(FactoryError):
    """The API key cannot be handed to a container by file."""

    exit_code = 72
