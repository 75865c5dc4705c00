"""The Docker engine: 100 to 104."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class EngineTooOldError(LibraryError, exit_code=100):
    """The container engine or its command lacks a feature that the build needs."""


class BuilderMissingError(LibraryError, exit_code=101):
    """The named builder does not exist, or does not start."""


class ForeignPlatformError(LibraryError, exit_code=102):
    """The image is for another architecture, and the engine cannot run its programs."""


class ImageBuildError(LibraryError, exit_code=103):
    """A step of a Docker build failed."""
