"""The Docker engine: 100 to 104."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class EngineTooOldError(FactoryError):
    """The container engine or its command lacks something that the build needs."""

    exit_code = 100


class BuilderMissingError(FactoryError):
    """The builder that was named does not exist, or does not start."""

    exit_code = 101


class ForeignPlatformError(FactoryError):
    """The image is for another kind of machine, and the engine cannot run its programs."""

    exit_code = 102


class ImageBuildError(FactoryError):
    """A step of a Docker build failed."""

    exit_code = 103
